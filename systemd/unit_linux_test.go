package systemd

import "testing"

func TestUnitDir(t *testing.T) {
	const (
		unified = "30 1 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		hybrid  = "31 1 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n32 1 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
		legacy  = "33 1 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n32 1 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
		inside  = "30 1 0:26 /machine/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	)
	for _, c := range []struct{ own, mounts, want string }{
		{"0::/system.slice/a.service\n", unified, "/sys/fs/cgroup/system.slice/a.service"},
		{"0::/system.slice/a.service/.control\n", unified, "/sys/fs/cgroup/system.slice/a.service"},
		{`0::/system.slice/system-a.slice/a@b\x2dc.service` + "\n", unified, `/sys/fs/cgroup/system.slice/system-a.slice/a@b\x2dc.service`},
		{"5:pids:/x.service\n1:name=systemd:/system.slice/a.service\n0::/system.slice/a.service\n", hybrid, "/sys/fs/cgroup/systemd/system.slice/a.service"},
		{"5:pids:/x.service\n1:name=systemd:/system.slice/a.service\n", legacy, "/sys/fs/cgroup/systemd/system.slice/a.service"},
		{"0::/machine/x/system.slice/a.service\n", inside, "/sys/fs/cgroup/system.slice/a.service"},
		{"0::/user.slice/user-0.slice/session-1.scope\n", unified, ""},
		{"0::/\n", unified, ""},
		{"0::/../a.service\n", inside, ""},
		{"5:pids:/system.slice/a.service\n", legacy, ""},
	} {
		if got, err := unitDir(c.own, c.mounts); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q: %q, %v; want %q", c.own, got, err, c.want)
		}
	}
}

// Outside of a service nothing is killed.
func TestKillRestOutside(t *testing.T) {
	if u, err := ownUnit(); err == nil {
		t.Skipf("these tests run in the service %s", u.dir)
	}
	if err := KillRest(t.Context(), []string{"ONLYONE_SESSION=x"}); err == nil {
		t.Error("no error")
	}
}
