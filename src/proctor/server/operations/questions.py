"""What time alone brings about in questions, whatever they are about."""

from __future__ import annotations

from proctor.server.rules import queries, validations
from proctor.server.rules.queries import QueryTask
from proctor.server.rules.validations import UpdateValidation
from proctor.server.transaction import Transaction


def expire_questions(tx: Transaction) -> None:
    """End the questions whose budget is used up, and forget those that ended long ago."""
    for query in tx.overdue_questions(QueryTask):
        tx.save_question(queries.expire(query))
    for validation in tx.overdue_questions(UpdateValidation):
        tx.save_question(validations.expire(validation))
    tx.forget_questions()
