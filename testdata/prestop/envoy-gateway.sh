#!/bin/sh
# Envoy Gateway's shutdown manager, by its published algorithm: fail health (which starts Envoy's drain as well), then look each
# second at the connections of the gateway's listeners until there is none.
# ADMIN          address of Envoy's admin
# MIN_DRAIN      seconds that it drains at least
# DRAIN_TIMEOUT  seconds after which it gives up; its exit code does not tell
set -eu

active() {
  curl -fsS --max-time 2 -G "http://$ADMIN/stats" --data-urlencode 'filter=^listener\..*\.downstream_cx_active$' |
    awk -F': ' '!/admin|19001|19003|worker|15021|18180/ { sum += $2 } END { print sum + 0 }'
}

now() { awk '{ print $1 }' /proc/uptime; }
over() { awk -v from="$1" -v least="$2" -v now="$(now)" 'BEGIN { exit !(now - from >= least) }'; }

begun=$(now)
curl -fsS -o /dev/null --max-time 2 -X POST "http://$ADMIN/healthcheck/fail"
echo "health fails, Envoy drains"
while :; do
  count=$(active || echo unknown)
  if over "$begun" "$DRAIN_TIMEOUT"; then echo "drain sequence timeout exceeded"; break; fi
  if [ "$count" = 0 ] && over "$begun" "$MIN_DRAIN"; then echo "no connection left"; break; fi
  sleep 1
done
