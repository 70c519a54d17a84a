#!/bin/bash
# build.sh FOLDER: the programs of a real Kubernetes in FOLDER/bin, from Debian 12's packages and its source package, all of
# which are unpacked in FOLDER: nothing is installed on this machine. About 15 minutes of CPU and 5 GB, once.
set -euo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$folder"
go=$folder/root/usr/lib/go-1.19
programs="kube-apiserver kube-scheduler kubelet kubectl"

if [ ! -x "$go/bin/go" ]; then
    mkdir -p debs
    (cd debs && apt-get download -qq golang-1.19-go golang-1.19-src etcd-server containerd runc containernetworking-plugins)
    for package in debs/*.deb; do dpkg -x "$package" root; done
fi
if [ ! -e source/Makefile ]; then
    # The machine's own sources of packages, as sources of source packages.
    mkdir -p lists/partial parts source
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        [ -f "$file" ] || continue
        sed -e 's/^Types: *deb\( .*\)\?$/Types: deb-src/' -e 's/^deb /deb-src /' "$file" >"parts/$(basename "$file")"
        case $file in *.list | *.sources) ;; *) rm "parts/$(basename "$file")" ;; esac
    done
    options="-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$folder/parts -o Dir::State::lists=$folder/lists"
    # shellcheck disable=SC2086
    apt-get $options update -qq || true # of other suppliers some have no sources
    # shellcheck disable=SC2086
    apt-get $options source --download-only -qq kubernetes
    tar -xzf kubernetes_*.orig.tar.gz -C source --strip-components=1
    tar -xJf kubernetes_*.debian.tar.xz -C source
    (cd source && while read -r patch; do patch -s -p1 <"debian/patches/$patch"; done <debian/patches/series)
fi

mkdir -p tools bin
if ! command -v rsync >/dev/null; then # with which its makefiles copy one file into a folder: rsync -pc FILE FOLDER
    printf '#!/bin/sh\nexec cp -p "$2" "$3"\n' >tools/rsync
    chmod 755 tools/rsync
fi
export GOROOT=$go PATH=$go/bin:$folder/tools:/usr/sbin:/usr/bin:/sbin:/bin
export GOPATH=$folder/go GOCACHE=$folder/cache GO111MODULE=off CGO_ENABLED=0 GOFLAGS= HOME=$folder
export KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_COMMIT=0 KUBE_GIT_TREE_STATE=archive KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20
mkdir -p "$GOPATH/src/k8s.io"
[ -e "$GOPATH/src/k8s.io/kubernetes" ] || ln -s "$folder/source" "$GOPATH/src/k8s.io/kubernetes"
cd "$GOPATH/src/k8s.io/kubernetes"
if [ ! -e "$folder/.generated" ]; then
    make --silent generated_files
    touch "$folder/.generated"
fi
version="-X k8s.io/component-base/version.gitVersion=v1.20.2 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=20"
for program in $programs; do
    [ -x "$folder/bin/$program" ] || go build -ldflags "-s -w $version" -o "$folder/bin/$program" "k8s.io/kubernetes/cmd/$program"
done
for program in etcd containerd containerd-shim-runc-v2 ctr; do ln -sf "$folder/root/usr/bin/$program" "$folder/bin/$program"; done
ln -sf "$folder/root/usr/sbin/runc" "$folder/bin/runc"
touch "$folder/.built"
