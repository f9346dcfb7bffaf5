#!/bin/sh
# What people run: tell the balancer first, then hope that the sleep is long enough.
# HC       address of the health stand-in
# SLEEP    seconds between the failing health answer and SIGTERM (30 in the field)
set -eu

post() { curl -fsS -o /dev/null --max-time 2 -X POST "http://$1"; }

post "$HC/drain"
post "$HC/close-lb"
echo "balancer path answers 503; sleeping $SLEEP s"
sleep "$SLEEP"
