"""Addresses of the whole project."""

from django.contrib import admin
from django.urls import include, path

from cyberagent.api import api

urlpatterns = [
    path("admin/", admin.site.urls),
    path("i18n/", include("django.conf.urls.i18n")),
    path("api/v1/", api.urls),
    path("", include("goals.urls")),
    path("", include("skills_app.urls")),
    path("", include("traces.urls")),
]

handler403 = "traces.views.base.denied"
handler404 = "traces.views.base.missing"
