"""Ask the server of examples/serve.sh, and print the answer as it comes.

python examples/client.py ["a question"] [--url http://127.0.0.1:8000]
"""

import argparse

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default="Explain in two sentences why the sky is blue.")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    arguments = parser.parse_args()

    client = OpenAI(base_url=f"{arguments.url}/v1", api_key="none")
    stream = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": arguments.question}],
        max_tokens=64,
        temperature=0,
        stream=True,
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
