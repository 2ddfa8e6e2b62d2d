from django.apps import AppConfig


class GoalsConfig(AppConfig):
    name = "goals"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from goals.projection import refresh
        from traces.ports import on_goals_changed

        on_goals_changed(refresh)
