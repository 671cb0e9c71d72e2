"""HTTP: connections, requests before they are routed, bodies, errors."""
