#!/bin/sh
# Looks for what `make setup` needs and prints the Python to use. What is missing is named, all at once,
# with the command that brings it. PYTHON and CXX choose an interpreter and a compiler.
set -u

missing=""   # what the machine lacks, one line each
packages=""  # the distribution's packages that bring it

if command -v apt-get >/dev/null 2>&1; then
    install="apt-get install -y" compiler_package=g++ headers_suffix=-dev venv_suffix=-venv
elif command -v dnf >/dev/null 2>&1; then
    install="dnf install -y" compiler_package=gcc-c++ headers_suffix=-devel venv_suffix=
elif command -v zypper >/dev/null 2>&1; then
    install="zypper install -y" compiler_package=gcc-c++ headers_suffix=-devel venv_suffix=
elif command -v pacman >/dev/null 2>&1; then
    install="pacman -S --noconfirm" compiler_package=gcc headers_suffix= venv_suffix=
elif command -v apk >/dev/null 2>&1; then
    install="apk add" compiler_package="g++ linux-headers" headers_suffix=-dev venv_suffix=
else
    install="" compiler_package=g++ headers_suffix=-dev venv_suffix=-venv
fi
[ "$(id -u)" = 0 ] || [ -z "$install" ] || install="sudo $install"

lacks() { # lacks WHAT PACKAGE
    missing="$missing
  - $1"
    case " $packages " in *" $2 "*) ;; *) packages="$packages $2" ;; esac
}

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

python=""
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
    if is_recent "$candidate"; then
        python=$candidate
        break
    fi
done

if [ -z "$python" ]; then
    lacks "Python 3.10 or newer (looked for ${PYTHON:-python3, python3.13 … python3.10})" \
        "python3${venv_suffix:+ python3$venv_suffix}${headers_suffix:+ python3$headers_suffix}"
    package=python3
else
    # A system's own Python is packaged as python3, a second one under its full version.
    package=python3
    case $(basename "$python") in python3.*) package=$(basename "$python") ;; esac
    "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
        lacks "$python's venv and ensurepip modules" "$package$venv_suffix"
    "$python" -c 'import sys, sysconfig, pathlib
sys.exit(not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists())' >/dev/null 2>&1 ||
        lacks "$python's C headers (Python.h)" "$package$headers_suffix"
fi

cxx=${CXX:-}
if [ -z "$cxx" ]; then
    for candidate in c++ g++ clang++; do
        if command -v "$candidate" >/dev/null 2>&1; then
            cxx=$candidate
            break
        fi
    done
fi
if [ -z "$cxx" ]; then
    lacks "a C++20 compiler (looked for c++, g++, clang++)" "$compiler_package"
else
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    printf '#include <bit>\n#include <concepts>\n#include <span>\nint main() { return std::popcount(0u); }\n' \
        >"$scratch/probe.cpp"
    $cxx -std=c++20 -o "$scratch/probe" "$scratch/probe.cpp" >"$scratch/log" 2>&1 ||
        lacks "a compiler that builds C++20 ($cxx says: $(head -n 1 "$scratch/log"))" "$compiler_package"
fi

if [ -n "$missing" ]; then
    {
        echo "headrace: this machine lacks$missing"
        if [ -n "$install" ]; then
            echo "Bring it with:  $install$packages"
        else
            echo "Install with the system's package manager (Debian's names):$packages"
        fi
        echo "then run make again. PYTHON=… and CXX=… choose another interpreter or compiler."
    } >&2
    exit 1
fi
echo "$python"
