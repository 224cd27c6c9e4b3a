"""holdfast for Django: a backend of its tasks, and `manage.py holdfast`.

```text
INSTALLED_APPS = [..., "holdfast.django"]
TASKS = {"default": {"BACKEND": "holdfast.django.backend.TaskBackend"}}
```

`backend` is the backend that `TASKS` names; `worker` has the app whose workers run the tasks.
"""
