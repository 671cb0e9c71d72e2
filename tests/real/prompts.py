"""What the trained model is asked."""

from __future__ import annotations

from attrs import frozen

CHATS = (
    "What is the capital of France?",
    "Write a haiku about autumn.",
    "Explain photosynthesis to a child.",
    "List three prime numbers.",
    "What is 17 plus 25?",
    "Translate 'good morning' to Spanish.",
    "Who wrote Hamlet?",
    "Give me a recipe for pancakes.",
    "Write a Python function that reverses a string.",
    "What is gravity?",
    "Name the planets of the solar system.",
    "Why is the sky blue?",
)


@frozen
class Question:
    text: str
    answer: str
    """What is in a right answer, as it is in the reference's."""
    margin: float
    """By how much, in logits, each of the reference's tokens up to the answer is at least above the
    second best."""


QUESTIONS = (
    Question("What is the capital of France?", "Paris", 0.08),
    Question("What is the capital of Japan?", "Tokyo", 2.54),
    Question("What is the capital of Germany?", "Berlin", 0.66),
    Question("What is the capital of Egypt?", "Cairo", 2.15),
    Question("What is the capital of the United Kingdom?", "London", 1.78),
    Question("What is the capital of Russia?", "Moscow", 2.33),
    Question("What is the capital of China?", "Beijing", 1.83),
    Question("What is the capital of India?", "New Delhi", 0.16),
    Question("Who wrote Hamlet?", "Shakespeare", 0.31),
    Question("Who painted the Mona Lisa?", "Leonardo da Vinci", 0.08),
    Question("What is the chemical symbol for gold?", "Au", 2.25),
    Question("What is the chemical formula of water?", "H2O", 0.52),
    Question("How many days are there in a week?", "7", 0.31),
    Question("What is the largest ocean on Earth?", "Pacific", 0.97),
    Question("Which planet is known as the Red Planet?", "Mars", 0.07),
    Question("What is the opposite of hot?", "cold", 0.79),
    Question("Who developed the theory of relativity?", "Einstein", 0.18),
    Question("What is the tallest mountain in the world?", "Everest", 1.00),
    Question("What is the main language spoken in Brazil?", "Portuguese", 1.30),
    Question("What is the currency of Japan?", "Yen", 0.38),
)
