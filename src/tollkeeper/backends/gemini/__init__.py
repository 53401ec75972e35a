"""Implements the generateContent wire of Google's Gemini, at the Gemini API and at Vertex AI."""
