#!/bin/sh
# Contour's shutdown manager, by its published algorithm: fail health (which starts Envoy's drain as well), then look at the open
# connections until there is none. It has no limit of its own: the pod's grace period is one.
# ADMIN  address of Envoy's admin
# CHECK  seconds between two looks
set -eu

active() {
  curl -fsS --max-time 2 -G "http://$ADMIN/stats" --data-urlencode 'filter=^http\..*\.downstream_cx_active$' |
    awk -F': ' '!/http\.(admin|agent|health)/ { sum += $2 } END { print sum + 0 }'
}

curl -fsS -o /dev/null --max-time 2 -X POST "http://$ADMIN/healthcheck/fail"
echo "health fails, Envoy drains"
while count=$(active || echo unknown); [ "$count" != 0 ]; do
  sleep "$CHECK"
done
echo "no connection left"
