from django.db import models


class Sent(models.Model):
    text = models.CharField(max_length=100)
