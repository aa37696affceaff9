"""The web process: it prints its port, and serves until it is killed."""

from wsgiref.simple_server import make_server

from django.core.management import call_command
from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()
call_command("migrate", run_syncdb=True, verbosity=0)
server = make_server("127.0.0.1", 0, application)
print(server.server_port, flush=True)  # noqa: T201 - the test waits for it
server.serve_forever()
