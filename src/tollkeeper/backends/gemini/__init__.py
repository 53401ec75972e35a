"""Implements Google's generateContent protocol, at the Gemini API and at Vertex AI."""
