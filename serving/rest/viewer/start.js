// Relative, so that it also holds below a path of a proxy. No validator: it would send the address to a stranger.
SwaggerUIBundle({ url: "openapi.json", dom_id: "#viewer", deepLinking: true, validatorUrl: null });
