"""Addresses of goals' own pages."""

from django.urls import path

from goals import views

urlpatterns = [path("runs/<str:trace_id>/goals/<str:goal_id>/", views.goal, name="goal")]
