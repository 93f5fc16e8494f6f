"""The verbs about what users register: `noetl credential …` and `noetl catalog …`."""
