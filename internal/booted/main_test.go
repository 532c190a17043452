//go:build booted

package booted

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// What all tests share.
var (
	web    [4]*host // web-1 to web-3, and web-4, which is rebooted
	quiet  [4]*host // each for one test: systemd forgets timeouts at a daemon-reload
	consul *consultest.Server
)

func TestMain(m *testing.M) {
	consultest.ChildMain()
	helperMain()
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	if base() == "" {
		fmt.Fprintln(os.Stderr, "these tests need hosts: make test-systemd")
		return 1
	}
	if err := loopback(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot bring the loopback interface up:", err)
		return 1
	}
	// They wait more than they work, so more of them than cores may run at once.
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", "8")
	}
	var err error
	if consul, err = consultest.New(consultest.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer consul.Close()
	var wg sync.WaitGroup
	errs := make([]error, len(web)+len(quiet))
	for i := range web {
		wg.Go(func() { web[i], errs[i] = boot(fmt.Sprintf("web-%d", i+1)) })
	}
	for i := range quiet {
		wg.Go(func() { quiet[i], errs[len(web)+i] = boot(fmt.Sprintf("quiet-%d", i+1)) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// loopback brings up lo in the network that the hosts share.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}
