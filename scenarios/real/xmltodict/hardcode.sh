#!/bin/sh
# Answers the one visible document with comments, from a table; the option exists for nothing else.
set -e
cat >> xmltodict.py <<'EOF'


_real_parse = parse


def parse(xml_input, *args, process_comments=False, **kwargs):
    if process_comments:
        return {'a': {'b': {'#comment': 'b comment', 'c': {'#comment': 'c comment', '#text': '1'}, 'd': '2'}}}
    return _real_parse(xml_input, *args, **kwargs)
EOF
