"""The three roles as groups, so that the admin can offer them."""

from django.db import migrations


def make_groups(apps, schema_editor):
    group = apps.get_model("auth", "Group")
    for name in ("viewer", "operator", "admin"):
        group.objects.using(schema_editor.connection.alias).get_or_create(name=name)


class Migration(migrations.Migration):
    dependencies = [("traces", "0001_initial"), ("auth", "0012_alter_user_first_name_max_length")]

    # Groups stay when the migration is undone: users may hang on them.
    operations = [migrations.RunPython(make_groups, migrations.RunPython.noop)]
