"""Mutations of the code between Celery and the stores: which of them does no test see?"""
