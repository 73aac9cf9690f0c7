#!/usr/bin/env python3
"""Turns enwik8 (the first 10^8 bytes of an English Wikipedia dump of 2006) into the prose of its articles.

    strip_enwik.py ENWIK8 TRAIN VAL     every 20th article goes to VAL; a line <|endoftext|> stands between articles

Redirects, pages outside the main namespace and articles without prose are left out; so are templates, tables, references,
images, lists, link farms and formulas. What stays: the title, headings that have text below them, paragraphs.
"""
import html
import re
import sys

SEPARATOR = "<|endoftext|>\n"
NAMESPACES = ("Wikipedia:", "Image:", "Template:", "Category:", "MediaWiki:", "Help:", "Portal:", "User:", "Talk:")
LEAST_PROSE = 200  # characters; shorter articles are stubs of little use

PAGE = re.compile(r"<page>\s*<title>(.*?)</title>.*?<text[^>]*>(.*?)</text>", re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
BLOCK = re.compile(r"<(ref|math|gallery|timeline|pre|code|nowiki|table|imagemap|score|hiero)\b[^>/]*>.*?</\1\s*>", re.S | re.I)
TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
TABLE = re.compile(r"\{\|(?:(?!\{\||\|\}).)*\|\}", re.S)
INNER_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
OUTER_LINK = re.compile(r"\[(?:https?|ftp|mailto)[^\s\]]*\s*([^\]]*)\]")
BARE_LINK = re.compile(r"(?:https?|ftp)://\S+")
QUOTES = re.compile(r"'{2,}")
HEADING = re.compile(r"^=+\s*(.*?)\s*=+$")
MAGIC_WORD = re.compile(r"__[A-Z]+__")


def remove_nested(pattern, text):
    """Removes innermost matches until there are none."""
    count = 1
    while count:
        text, count = pattern.subn("", text)
    return text


def link_text(match):
    """[[target|text]] -> text; links to images, categories and other languages have none."""
    parts = match.group(1).split("|")
    if ":" in parts[0] and not parts[0].startswith(":"):
        prefix = parts[0].split(":")[0].strip()
        if prefix.lower() in ("image", "category", "media") or re.fullmatch(r"[a-z]{2,3}(-[a-z-]+)?|simple", prefix):
            return ""
    return parts[-1].lstrip(":")


def strip_markup(text):
    text = html.unescape(html.unescape(text))  # once for XML, once for the entities of the wiki text
    text = BLOCK.sub("", COMMENT.sub("", text))
    text = remove_nested(TABLE, remove_nested(TEMPLATE, text))
    count = 1
    while count:  # links nest inside image captions
        text, count = INNER_LINK.subn(link_text, text)
    text = OUTER_LINK.sub(r"\1", text)
    for pattern in (BARE_LINK, TAG, QUOTES, MAGIC_WORD):
        text = pattern.sub("", text)
    return text.replace("\u00a0", " ")


def prose(text):
    """The paragraphs, and the headings that have one below them, with an empty line between."""
    kept, heading = [], None
    for line in strip_markup(text).split("\n"):
        line = re.sub(r"\s+", " ", line).replace("( ", "(").replace("()", "").replace(" ,", ",").strip()
        found = HEADING.match(line)
        if found:
            heading = found.group(1)
        elif len(line) > 40 and line[0] not in "*#:;|!{}[]<>=" and line[-1] in ".!?\"')":
            if heading:
                kept.append(heading)
            kept.append(line)
            heading = None
    return "\n\n".join(kept)


def articles(dump):
    for title, text in PAGE.findall(dump):
        if title.startswith(NAMESPACES) or text[:12].lower().startswith("#redirect"):
            continue
        body = prose(text)
        if len(body) >= LEAST_PROSE:
            yield f"{html.unescape(title)}\n\n{body}\n"


def main():
    if sys.argv[1:] in (["--help"], ["-h"]):
        sys.exit(print(__doc__))
    if len(sys.argv) != 4:
        sys.exit("usage: strip_enwik.py ENWIK8 TRAIN VAL")
    with open(sys.argv[1], encoding="utf-8", errors="ignore", newline="\n") as file:
        dump = file.read()
    outs = [open(path, "w", encoding="utf-8", newline="\n") for path in sys.argv[2:]]
    written = [0, 0]
    for number, article in enumerate(articles(dump)):
        held_out = number % 20 == 19
        outs[held_out].write((SEPARATOR if written[held_out] else "") + article)
        written[held_out] += 1
    for out in outs:
        out.close()
    if not all(written):
        sys.exit(f"strip_enwik.py: {sys.argv[1]}: no articles found; expected a Wikipedia dump")
    print(f"{written[0]} articles to train on, {written[1]} held out")


if __name__ == "__main__":
    main()
