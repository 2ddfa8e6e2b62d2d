"""Addresses of the pages of skills."""

from django.urls import path

from skills_app import views

urlpatterns = [
    path("skills/", views.skills, name="skills"),
    path("skills/<str:name>/", views.skill, name="skill"),
]
