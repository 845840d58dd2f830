"""What the probes know about their hosts: one module per engine or trainer, each imported by name.

Readers turn what a host returns into arguments of a `Probe` call. They import no host: objects are
read by attribute, so that a reader works wherever its caller already has the host's objects. A
reader raises WireError for what it cannot read; `Probe.rollout_from` calls it inside the guard.
"""
