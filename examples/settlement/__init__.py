"""A small payments application that settles its orders with jobs, and proves that its books balance.

models        the application's own tables
jobs          SettlePayment: one job an order
application   the producers: transactions that commit, repeat and roll back
workers       the worker processes, one of which is killed
run           one run, from the first order to the balance
balance       what the database says afterwards, line by line
sabotage      ways to spoil a run, to see that the balance notices
database      a server, a fresh database, and ``alembic upgrade head``
progress      bars, or plain lines

Run it with ``python -m examples.settlement``.
"""
