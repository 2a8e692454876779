package lab_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

func etcdClient(t *testing.T, endpoints ...string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("close client: %v", err)
		}
	})
	return c
}

func TestEtcdClusterOutlivesANode(t *testing.T) {
	t.Parallel()
	e := labtest.Etcd(t, lab.EtcdConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	if n := len(e.Nodes()); n != 3 || len(e.Endpoints()) != 3 || len(e.PIDs()) != 3 {
		t.Fatalf("%d nodes, endpoints %v, processes %v", n, e.Endpoints(), e.PIDs())
	}
	all := etcdClient(t, e.Endpoints()...)
	// etcd refuses puts while it elects, as it does when the victim has led: the
	// same put may be asked again.
	put := func(key string) {
		t.Helper()
		_, err := all.Put(ctx, key, "value of "+key)
		for err != nil && ctx.Err() == nil {
			t.Logf("put %s once more: %v", key, err)
			_, err = all.Put(ctx, key, "value of "+key)
		}
		if err != nil {
			t.Fatalf("put %s: %v", key, err)
		}
	}
	put("one")
	victim := e.Nodes()[1]
	pid := victim.PID()
	victim.Kill()
	if runs(pid) {
		t.Errorf("process %d still runs after Kill", pid)
	}
	put("two")
	if err := victim.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if err := e.Await(ctx); err != nil {
		t.Fatal(err)
	}
	// The keys that the others took meanwhile are there, too, by its own answer.
	got, err := etcdClient(t, "http://"+victim.Addr()).Get(ctx, "two")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "value of two" {
		t.Errorf("get two from the restarted node: %v, %v", got, err)
	}
	pids, dirs := e.PIDs(), e.Nodes()
	if err := e.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	for i, pid := range pids {
		if runs(pid) {
			t.Errorf("process %d still runs after Stop", pid)
		}
		if _, err := os.Stat(filepath.Dir(dirs[i].DataDir())); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("run directory after Stop: %v, want it gone", err)
		}
	}
	if err := e.Stop(ctx); err != nil {
		t.Errorf("second Stop: %v", err)
	}
}

func TestEtcdIsRefused(t *testing.T) {
	t.Parallel()
	labtest.RequireEtcd(t)
	for name, cfg := range map[string]lab.EtcdConfig{
		"too many nodes": {Nodes: 8},
		"no program":     {Program: "/nonexistent/etcd"},
		"unknown flag":   {Nodes: 1, Flags: map[string]string{"no-such-flag": "1"}},
	} {
		e, err := lab.StartEtcd(t.Context(), cfg)
		if err == nil {
			t.Errorf("%s: started", name)
			_ = e.Stop(t.Context())
		}
	}
}

func TestEtcdIsNotInstalled(t *testing.T) {
	t.Chdir("/") // not in a checkout
	t.Setenv("PATH", t.TempDir())
	t.Setenv(lab.EnvEtcd, "")
	_, _, err := lab.FindEtcd(t.Context(), "")
	if err == nil {
		t.Skip("etcd is where it is always looked for: beside this program or in /usr/sbin")
	}
	if !lab.NotInstalled(err) {
		t.Errorf("error %v, want one that says how to install it", err)
	}
}
