package lab

import (
	"strings"
	"testing"
	"time"
)

func TestKVIsToldOfAllItsPeers(t *testing.T) {
	ports := [][]int{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}
	n := &Node{number: 2}
	n.port, n.aux, n.data = 4, ports[1][1:], "/data"
	args := strings.Join(kvArgs(KVConfig{Preset: "curp", BatchDelay: "150us", LinkLatency: 25 * time.Millisecond, Flags: map[string]string{"log-level": "info"}}, ports, n), " ")
	want := "kv serve --admin=127.0.0.1:6 --batch-delay=150us --data=/data --durability=disk --id=2 --link-latency=25ms --log-format=text" +
		" --log-level=info --peers=1=127.0.0.1:2/1,2=127.0.0.1:5/4,3=127.0.0.1:8/7 --preset=curp --resp=127.0.0.1:4"
	if args != want {
		t.Errorf("arguments\n%s\nwant\n%s", args, want)
	}
	change := func(number int, flags map[string]string) {
		if number == 2 {
			flags["data"] = "/elsewhere"
		}
	}
	if args = strings.Join(kvArgs(KVConfig{Each: change}, ports, n), " "); !strings.Contains(args, "--data=/elsewhere ") {
		t.Errorf("arguments that were changed for this replica: %s", args)
	}
	args = strings.Join(kvArgs(KVConfig{BatchDelay: "auto", Durability: Fast}, ports, n), " ")
	if !strings.Contains(args, "--durability=memory") || strings.Contains(args, "--data") || strings.Contains(args, "link-latency") {
		t.Errorf("arguments of a replica in memory: %s", args)
	}
}

func TestKVIsRefused(t *testing.T) {
	for name, cfg := range map[string]KVConfig{
		"no program":      {},
		"two replicas":    {Program: "/bin/true", Replicas: 2},
		"too many":        {Program: "/bin/true", Replicas: 8},
		"negative":        {Program: "/bin/true", LinkLatency: -1},
		"not a program":   {Program: "/nonexistent/weir"},
		"another program": {Program: "/bin/false"},
	} {
		if k, err := StartKV(t.Context(), cfg); err == nil {
			t.Errorf("%s: started", name)
			_ = k.Stop(t.Context())
		}
	}
}
