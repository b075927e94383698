// Asks for a verdict over HTTP: COURT, TOKEN in the environment, meme.png in this folder. No package.
package main

import ("encoding/json"; "fmt"; "net/http"; "os")

func main() {
	picture, _ := os.Open("meme.png")
	request, _ := http.NewRequest("POST", os.Getenv("COURT")+"/v1/judge?text=when+the+printer+works", picture)
	request.Header = http.Header{"Content-Type": {"image/png"}, "Idempotency-Key": {"post-7"}}
	request.Header.Set("Authorization", "Bearer "+os.Getenv("TOKEN"))
	result := struct{ Decision, Reason string }{Reason: "no answer"}
	if answer, err := http.DefaultClient.Do(request); err == nil { json.NewDecoder(answer.Body).Decode(&result) }
	if result.Decision == "" { result.Decision = "hold back: " + result.Reason }
	fmt.Println(result.Decision)
}
