"""The app that runs Django's tasks: `holdfast worker holdfast.django.worker:app`.

`manage.py holdfast worker` uses it. Django is set up here: the processes of `--processes` and of
`holdfast dev` import this module, too.
"""

from __future__ import annotations

import logging

import django
from django.apps import apps
from django.conf import settings

from holdfast.django.apps import places
from holdfast.django.running import task_app

if not apps.ready:
    django.setup()
if not settings.LOGGING:  # the command line writes to the console what Django's handler would, too
    _log = logging.getLogger("django")
    _log.handlers = [each for each in _log.handlers if type(each) is not logging.StreamHandler]
app = task_app(places()[0].app)
