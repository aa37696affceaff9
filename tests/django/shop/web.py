"""The web process: it prints its port, and serves until it is killed."""

from wsgiref.simple_server import make_server

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

server = make_server("127.0.0.1", 0, StaticFilesHandler(get_wsgi_application()))
print(server.server_port, flush=True)  # noqa: T201 - the test waits for it
server.serve_forever()
