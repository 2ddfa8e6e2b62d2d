from django.apps import AppConfig


class SkillsConfig(AppConfig):
    name = "skills_app"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Skills"

    def ready(self) -> None:
        from skills_app.library import current_skills
        from traces.ports import skills_from

        skills_from(current_skills)
