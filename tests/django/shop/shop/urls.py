"""What the web process can be asked."""

from django.contrib import admin
from django.urls import path
from orders import views

urlpatterns = [path("admin/", admin.site.urls), path("bill/<int:number>/<how>", views.bill)]
