"""Views in a transaction, as ATOMIC_REQUESTS makes them."""

from django.http import JsonResponse

from orders.models import Order
from orders.tasks import bill as task


def bill(request, number, how):
    """Publish after a write, and perhaps fail after that."""
    Order.objects.create(number=number)
    outcome = task.delay(number).outcome
    if how == "fail":
        raise RuntimeError("the request is rolled back")
    return JsonResponse({"outcome": outcome, "orders": Order.objects.count()})
