# For build, base-image and test: which engine there is, and how this machine reaches its mirrors.

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

# Everything here is the project's own, so that a chroot isolates well enough, and works inside a container.
export BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}

# A docker without its daemon does not count.
find_engine() {
    if docker info >/dev/null 2>&1; then
        echo docker
    elif command -v buildah >/dev/null; then
        echo buildah
    else
        fail "Neither a running docker nor buildah is here. Debian and Ubuntu: apt-get install buildah"
    fi
}

has_image() {
    case $engine in
        docker) docker image inspect "$1" >/dev/null 2>&1 ;;
        buildah) buildah inspect --type image "$1" >/dev/null 2>&1 ;;
    esac
}

# Prints sources.list for Debian 13 by the mirrors in the host's apt configuration; nothing where it has none.
debian_sources() {
    local label suite mirror
    while read -r label suite; do
        mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' "Label: $label" 2>/dev/null |
            sed -n 1p || true)
        [[ -z $mirror ]] || echo "deb $mirror $suite main"
    done <<<$'Debian trixie\nDebian-Security trixie-security'
}

pip_setting() {
    local variable=PIP_${1^^}
    variable=${variable//-/_}
    if [[ -n ${!variable:-} ]]; then
        printf '%s\n' "${!variable}"
    else
        python3 -m pip config get "global.$1" 2>/dev/null || true
    fi
}

# Fills a folder with apt.conf, sources.list, pip.conf and ca.pem, as they look from /run/secrets in a container.
write_secrets() {
    local folder=$1 bundle index extra
    bundle=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
    index=$(pip_setting index-url)
    index=${index:-${UV_DEFAULT_INDEX:-}}
    # Folders of this machine are not there in the container.
    extra=$(pip_setting extra-index-url | tr ' ' '\n' | grep -E '^https?:' | tr '\n' ' ' || true)
    (
        umask 022
        printf '[global]\ndisable-pip-version-check = true\nroot-user-action = ignore\ntimeout = 180\n' >"$folder/pip.conf"
        [[ -z $index ]] || printf 'index-url = %s\n' "$index" >>"$folder/pip.conf"
        [[ -z $extra ]] || printf 'extra-index-url = %s\n' "$extra" >>"$folder/pip.conf"
        : >"$folder/apt.conf" && : >"$folder/ca.pem"
        debian_sources >"$folder/sources.list"
        if [[ -f $bundle ]]; then
            cp "$bundle" "$folder/ca.pem"
            echo 'cert = /run/secrets/ca.pem' >>"$folder/pip.conf"
            echo 'Acquire::https::CAInfo "/run/secrets/ca.pem";' >>"$folder/apt.conf"
        fi
        if [[ -s $folder/sources.list ]]; then
            echo 'Dir::Etc { SourceList "/run/secrets/sources.list"; SourceParts "-"; };' >>"$folder/apt.conf"
        fi
    )
}
