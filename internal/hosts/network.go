//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A host is a network namespace with clocks of its own.
type host struct {
	name  string
	addr  string
	ahead int // seconds by which its clocks are ahead of the machine's
	path  string
	netns *os.File
}

// The addresses, all on the bridge. The director has one, too: it is the operator.
const (
	network        = "10.77.0."
	directorAddr   = network + "1"
	numServers     = 3
	numHosts       = 4
	bridge         = "br0"
	commandTimeout = 20 * time.Second // of ip, nft and tc: milliseconds, unless the machine is busy
)

// newHosts makes the namespaces and the network between them.
func newHosts(ctx context.Context, dir string) (servers, hosts []*host, err error) {
	for _, argv := range []string{
		"ip link set lo up",
		"ip link add " + bridge + " type bridge",
		"ip link set " + bridge + " up",
		"ip addr add " + directorAddr + "/24 dev " + bridge,
	} {
		if err := run(ctx, "", strings.Fields(argv)...); err != nil {
			return nil, nil, err
		}
	}
	add := func(name string, last, ahead int) (*host, error) {
		h := &host{name: name, addr: fmt.Sprint(network, last), ahead: ahead, path: filepath.Join(dir, "netns-"+name)}
		if err := h.connect(ctx); err != nil {
			return nil, fmt.Errorf("cannot make host %s: %w", name, err)
		}
		return h, nil
	}
	for i := range numServers {
		h, err := add(fmt.Sprintf("s%d", i+1), 11+i, 4000*(i+1))
		if err != nil {
			return nil, nil, err
		}
		servers = append(servers, h)
	}
	for i := range numHosts {
		// Some hours apart, and one as the machine itself.
		h, err := add(fmt.Sprintf("h%d", i+1), 21+i, 10000*i)
		if err != nil {
			return nil, nil, err
		}
		hosts = append(hosts, h)
	}
	return servers, hosts, nil
}

// connect makes the namespace and its cable to the bridge.
func (h *host) connect(ctx context.Context) error {
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends in the new namespace
		made <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			if err := os.WriteFile(h.path, nil, 0o600); err != nil {
				return err
			}
			return unix.Mount("/proc/thread-self/ns/net", h.path, "", unix.MS_BIND, "")
		}()
	}()
	if err := <-made; err != nil {
		return err
	}
	var err error
	if h.netns, err = os.Open(h.path); err != nil {
		return err
	}
	for _, argv := range []string{
		"ip link add " + h.name + " type veth peer name eth0 netns " + h.path,
		"ip link set " + h.name + " master " + bridge + " up",
	} {
		if err := run(ctx, "", strings.Fields(argv)...); err != nil {
			return err
		}
	}
	for _, argv := range []string{
		"ip link set lo up",
		"ip addr add " + h.addr + "/24 dev eth0",
		"ip link set eth0 up",
	} {
		if err := h.run(ctx, "", strings.Fields(argv)...); err != nil {
			return err
		}
	}
	return nil
}

// in calls f on a thread that is in the host's network namespace.
func (h *host) in(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(home)
			err = unix.Setns(int(h.netns.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			done <- err
			return
		}
		err = f()
		// A thread that can't come back ends with this goroutine.
		if unix.Setns(home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// listen listens on an address of the host.
func (h *host) listen(addr string) (l net.Listener, err error) {
	err = h.in(func() (err error) { l, err = net.Listen("tcp4", addr); return err })
	return l, err
}

// dial connects from the host. The address is a literal one, so that this thread makes the
// socket.
func (h *host) dial(ctx context.Context, addr string) (c net.Conn, err error) {
	err = h.in(func() (err error) {
		c, err = (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp4", addr)
		return err
	})
	return c, err
}

// run runs a short command in the host's network namespace.
func (h *host) run(ctx context.Context, stdin string, argv ...string) error {
	return h.in(func() error { return run(ctx, stdin, argv...) })
}

func run(ctx context.Context, stdin string, argv ...string) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out), ctx.Err())
	}
	return nil
}

// A filter drops packets of a host, in nft's words; lo is left alone. Heal with clear.
type filter struct{ in, out string }

func (h *host) drop(ctx context.Context, f filter) error {
	var b strings.Builder
	b.WriteString("table inet fault {\n")
	for _, c := range []struct{ hook, lo, rule string }{{"input", "iif", f.in}, {"output", "oif", f.out}} {
		if c.rule != "" {
			fmt.Fprintf(&b, "chain %s { type filter hook %s priority -100; policy accept; %s lo accept; %s; }\n", c.hook, c.hook, c.lo, c.rule)
		}
	}
	b.WriteString("}\n")
	return h.run(ctx, b.String(), "nft", "-f", "-")
}

func (h *host) clear(ctx context.Context) error {
	return h.run(ctx, "table inet fault\ndelete table inet fault\n", "nft", "-f", "-")
}
