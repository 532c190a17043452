package consultest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Versions are those that tests know how to run.
var Versions = []string{"1.8", "1.14"}

const versionVariable = "ONLYONE_TEST_CONSUL"

// Version is the version that tests run on by default.
func Version() string {
	if v := os.Getenv(versionVariable); v != "" {
		return v
	}
	return "1.8"
}

// Each runs f as a parallel subtest on each version of Consul, or only on the one that
// ONLYONE_TEST_CONSUL names. Unless it is named, 1.14 is skipped where it would have to
// be built first, which takes minutes.
func Each(t *testing.T, f func(t *testing.T, version string)) {
	versions := Versions
	if v := os.Getenv(versionVariable); v != "" {
		versions = []string{v}
	}
	for _, v := range versions {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			if v == "1.14" && len(versions) > 1 && !built(v) {
				t.Skip("Consul 1.14 isn't built yet; to build it: scripts/consul 1.14")
			}
			f(t, v)
		})
	}
}

// built reports whether scripts/consul has 1.14 at hand.
func built(version string) bool {
	if os.Getenv("CONSUL_114_BIN") != "" {
		return true
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return false
	}
	found, err := filepath.Glob(filepath.Join(cache, "onlyone", "consul", version+".*", "consul"))
	return err == nil && len(found) > 0
}

var (
	binariesMu sync.Mutex
	binaries   = map[string]string{}
)

// Binary is the path of a Consul of a version, from scripts/consul.
func Binary(version string) (string, error) {
	binariesMu.Lock()
	defer binariesMu.Unlock()
	if path, ok := binaries[version]; ok {
		return path, nil
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command("bash", filepath.Join(root, "scripts", "consul"), version)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("scripts/consul %s: %w: %s", version, err, stderr.Bytes())
	}
	path := strings.TrimSpace(stdout.String())
	binaries[version] = path
	return path, nil
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("cannot find go.mod above the working directory")
		}
		dir = parent
	}
}
