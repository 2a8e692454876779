package kvcmd

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// TestKVMembers changes the members of a cluster under load, of which no
// operation fails.
func TestKVMembers(t *testing.T) {
	r := newKVRig(t, lab.KVConfig{})
	free := labtest.Addrs(t, 2)
	// A native client must know every replica that may lead.
	all := strings.Join(append(r.PeerAddrs(), free[0]), ",")
	load := r.load("n", free[0])
	var peers []string
	for i, addr := range r.PeerAddrs() {
		peers = append(peers, fmt.Sprintf("%d=%s", i+1, addr))
	}
	// As the configuration file and the environment say.
	file := filepath.Join(t.TempDir(), "kv.yaml")
	clitest.Write(t, file, fmt.Sprintf("id: 4\njoin: true\npeers: %s,4=%s\nadmin: %s\n", strings.Join(peers, ","), free[0], free[1]))
	t.Setenv("WEIR_KV_DATA", filepath.Join(t.TempDir(), "data"))
	p := strayed(t, "kv", "serve", "-c", file)
	p.says("weir kv serve starts", "waits to be added to the cluster", "weir kv member add")
	admin := "http://" + free[1]
	testkit.Eventually(t, "the new replica runs", func() bool { return answers(admin+"/healthz") == http.StatusOK })
	if code, body := clitest.Get(t, admin+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "waits to be added") {
		t.Errorf("/readyz before it is added: %d %s", code, body)
	}

	for verb, words := range map[string]string{
		"promote 4":            "replica 4 is not a learner",
		"remove 9":             "replica 9 is not a member",
		"transfer 4":           "replica 4 is not a voter",
		"replace 1 4":          "replica 4 is not a learner",
		"add 1=" + free[0]:     "replica 1 is a member already, at ",
		"add 4=" + free[0][:9]: "want HOST:PORT",
	} {
		r := program.Call(t, append([]string{"kv", "member"}, strings.Fields(verb)...)...)
		if r.Code == cli.ExitFine || !strings.Contains(r.Stderr, words) {
			t.Errorf("member %s: %s, want %q", verb, r, words)
		}
	}

	if out := program.Must(t, "kv", "member", "add", "4="+free[0]); out != "ok\n" {
		t.Errorf("member add prints %q", out)
	}
	if out := program.Must(t, "kv", "member", "add", "4="+free[0]); out != "ok\n" { // who has not got the answer asks again
		t.Errorf("member add, again, prints %q", out)
	}
	t.Setenv("WEIR_KV_ENDPOINTS", all)
	load.goesOn(10)
	testkit.Eventually(t, "the learner has caught up", func() bool { return answers(admin+"/readyz") == http.StatusOK })
	members := clitest.Decode[[]kvMember](t, program.Must(t, "kv", "member", "list", "--json"))
	if len(members) != 4 || members[3].Voter || members[3].Addr != free[0] {
		t.Errorf("members with a learner: %+v", members)
	}
	if out := whole(t); !strings.Contains(out, "learner") {
		t.Errorf("status with a learner:\n%s", out)
	}
	program.Refuse(t, cli.ExitFailed, []string{"replica 4 is not a voter"}, "kv", "member", "transfer", "4")
	testkit.Eventually(t, "the learner votes", func() bool {
		return program.Call(t, "kv", "member", "promote", "4").Code == cli.ExitFine || votes(t, 4)
	})
	load.goesOn(10)
	program.Must(t, "kv", "member", "promote", "4")
	// A transfer that takes longer than an election is given up: it is asked for
	// until it has come about.
	testkit.Eventually(t, "the new replica leads", func() bool {
		program.Must(t, "kv", "member", "transfer", "4", "--json")
		_, body := clitest.Get(t, admin+"/status.json")
		return strings.Contains(body, `"leader": 4`) && strings.Contains(body, `"ready": true`)
	})
	load.goesOn(10)
	testkit.Eventually(t, "replica 1 leads after the transfer to it", func() bool {
		program.Must(t, "kv", "member", "transfer", "1")
		return r.leader(1, 2, 3) == 1
	})
	program.Must(t, "kv", "member", "remove", "4")
	program.Must(t, "kv", "member", "remove", "4")
	p.ends(cli.ExitFailed, "replica 4 was removed from the cluster")
	strayed(t, "kv", "serve", "-c", file).saysItIsNoMember(4)
	program.Refuse(t, cli.ExitFailed, []string{"replica 4 was a member and has left: its number is never used again", "such as 5"}, "kv", "member", "add", "4="+free[0])
	load.goesOn(10)
	t.Setenv("WEIR_KV_ENDPOINTS", strings.Join(r.PeerAddrs(), ","))
	whole(t)
	testkit.Eventually(t, "replica 1 is one of three members and leads", func() bool {
		program.Must(t, "kv", "member", "transfer", "1")
		members = clitest.Decode[[]kvMember](t, program.Must(t, "kv", "member", "list", "--json"))
		return len(members) == 3 && members[0].Leader
	})
	if want, got := load.end()+"\n", program.Must(t, "kv", "get", "n"); got != want {
		t.Errorf("the counter is %q, want %q", got, want)
	}
}

// votes reports whether a replica is a voter: the answer to a change may be lost
// with the leader that has made it.
func votes(t *testing.T, id int) bool {
	t.Helper()
	members := clitest.Decode[[]kvMember](t, program.Must(t, "kv", "member", "list", "--json"))
	return slices.ContainsFunc(members, func(m kvMember) bool { return m.ID == uint64(id) && m.Voter })
}
