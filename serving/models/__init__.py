"""The models that speak in a trial: where they are asked, and a vLLM started here."""
