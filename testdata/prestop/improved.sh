#!/bin/sh
# The improved preStop script of the project's starting document: drain Envoy with health at 200,
# poll admin until nothing is in flight, and only then fail health.
# HC         address of the health stand-in
# ADMIN      address of Envoy's admin
# POLL       seconds between two looks at the counts (1 is an assumption: the document names no pace)
# MAX_WAIT   seconds after which health fails whatever is in flight
# LB_BUFFER  seconds given to the balancer to mark the backend DOWN (10 in the field)
set -eu

post() { curl -fsS -o /dev/null --max-time 2 -X POST "http://$1"; }

# Requests in flight: downstream of the traffic listeners plus upstream of their clusters; "unknown" if admin is silent.
active() {
  curl -fsS --max-time 2 -G "http://$ADMIN/stats" --data-urlencode \
    'filter=^(http\.outbound_.*\.downstream_rq_active|cluster\.outbound.*\.upstream_rq_active)$' |
    awk -F': ' '{ sum += $2; seen = 1 } END { print seen ? sum : "unknown" }'
}

post "$HC/drain"
post "$ADMIN/drain_listeners?graceful&skip_exit"
echo "envoy drain started, health stays 200"
waited=0
while [ "$waited" -lt "$MAX_WAIT" ]; do
  count=$(active || echo unknown)
  [ "$count" = 0 ] && break
  sleep "$POLL"
  waited=$((waited + POLL))
done
echo "active is $count after $waited s of polling; balancer path to 503"
post "$HC/close-lb"
sleep "$LB_BUFFER"
post "$HC/close"
echo "readiness path to 503"
