"""Google's generateContent protocol, at the Gemini API and Vertex AI."""
