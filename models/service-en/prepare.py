"""Makes the shipped corpora `service-en.train` and `service-en.dev` from CLINC150.

    python models/service-en/prepare.py CLINC150/data_full.json src/clearhead/shipped/corpora

Kept are the questions of 20 intents about bank accounts and cards, and all questions that are out of scope; the answer
of those is empty.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

INTENTS = {
    *("account_blocked", "balance", "bill_due", "card_declined"),
    *("credit_limit", "credit_score", "damaged_card", "direct_deposit"),
    *("exchange_rate", "freeze_account", "interest_rate", "international_fees"),
    *("new_card", "order_checks", "pin_change", "report_fraud"),
    *("report_lost_card", "routing", "transfer", "travel_notification"),
}
PARTS = {"train": ("train", "oos_train"), "dev": ("val", "oos_val")}


def main(source: Path, target: Path) -> None:
    data = json.loads(source.read_text(encoding="utf-8"))
    for name, (inside, outside) in PARTS.items():
        rows = [(question, intent) for question, intent in data[inside] if intent in INTENTS]
        rows += [(question, "") for question, _ in data[outside]]
        text = "".join(f"{' '.join(question.split())}\t{intent}\n" for question, intent in rows)
        packed = gzip.compress(text.encode(), compresslevel=9, mtime=0)
        (target / f"service-en.{name}.tsv.gz").write_bytes(packed)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
