package outboxcmd

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/outbox"
)

func TestOutboxWarnsOfPasswords(t *testing.T) {
	for _, tt := range []struct {
		db, sink string
		env      map[string]string
		want     []string
	}{
		{db: "postgres://app:geheim@127.0.0.1:1/x", want: []string{"--db"}},
		{db: "mysql://app:geheim@127.0.0.1:1/x", sink: "amqp://u:geheim@h", want: []string{"--db", "--sink"}},
		{db: "mysql://app@127.0.0.1:1/x", sink: "nats://geheim@h", env: map[string]string{"MYSQL_PWD": "geheim"}, want: []string{"--sink"}},
		{db: "postgres://app@127.0.0.1:1/x", sink: "https://h/a?source=b%40c", env: map[string]string{"PGPASSWORD": "geheim"}},
		{env: map[string]string{"WEIR_OUTBOX_DB": "mysql://app:geheim@127.0.0.1:1/x", "WEIR_OUTBOX_SINK": "redis://:geheim@h"}},
	} {
		clitest.ClearEnvironment(t)
		for name, value := range tt.env {
			t.Setenv(name, value)
		}
		loader := outboxLoader("relay")
		loader.Flags = map[string]string{}
		if tt.db != "" {
			loader.Flags["db"] = tt.db
		}
		if tt.sink != "" {
			loader.Flags["sink"] = tt.sink
		} else if tt.env["WEIR_OUTBOX_SINK"] == "" {
			loader.Flags["sink"] = "stdout:"
		}
		c, err := loadOutbox(loader)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		c.warnOfPasswords(cli.NewLog(&b, "text", c.logLevel))
		for _, flag := range []string{"--db", "--sink"} {
			if strings.Contains(b.String(), "the password in "+flag) != slices.Contains(tt.want, flag) {
				t.Errorf("%+v: %s", tt, b.String())
			}
		}
		if strings.Contains(b.String()+c.db.Address, "geheim") {
			t.Errorf("%+v: says the password: %s %s", tt, b.String(), c.db.Address)
		}
	}
}

func TestOutboxConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "outbox.yaml")
	clitest.Write(t, file, "db: sqlite:file.db\nsink: 'stdout:'\nworkers: 7\npartition_keep: 30d\npurge_after: 2w\nunordered: yes\n")
	relay := func(flags map[string]string, file string, getenv func(string) string) (outboxConfig, error) {
		loader := outboxLoader("relay")
		loader.Flags, loader.File, loader.Getenv = flags, file, getenv
		return loadOutbox(loader)
	}
	empty := func(string) string { return "" }
	if _, err := relay(nil, file, empty); err == nil {
		t.Error("yes is no boolean of this file, and was taken")
	}
	clitest.Write(t, file, "db: sqlite:file.db\nsink: 'stdout:'\nworkers: 7\npartition_keep: 30d\npurge_after: 2w\nunordered: true\n")
	for _, tt := range []struct {
		env, flag string
		want      int
	}{{"", "", 7}, {"8", "", 8}, {"8", "9", 9}, {"", "9", 9}} {
		flags := map[string]string{}
		if tt.flag != "" {
			flags["workers"] = tt.flag
		}
		c, err := relay(flags, file, func(name string) string { return map[string]string{"WEIR_OUTBOX_WORKERS": tt.env}[name] })
		if err != nil || c.relay.Publishers != tt.want {
			t.Errorf("environment %q, flag %q: %d, %v; want %d", tt.env, tt.flag, c.relay.Publishers, err, tt.want)
		}
		if c.maintenance.Partitions.Keep != 30*24*time.Hour || c.maintenance.PurgeDelivered != 14*24*time.Hour || !c.relay.Unordered {
			t.Errorf("read %+v, %+v", c.maintenance, c.relay)
		}
	}
	c, err := relay(map[string]string{"db": "x.db", "sink": "stdout:"}, "", empty)
	if err != nil {
		t.Fatal(err)
	}
	want := outbox.Config{
		Publishers: 4, Batch: 500, MaxInFlight: 10_000, MaxInFlightBytes: 64 << 20, MaxWaiting: 500_000, AckDelay: 20 * time.Millisecond,
		MinPoll: 2 * time.Millisecond, MaxPoll: 100 * time.Millisecond, SweepEvery: 30 * time.Second,
		Retry:   outbox.RetryPolicy{MaxAttempts: 10, Base: 200 * time.Millisecond, Max: 5 * time.Minute},
		LogWait: 30 * time.Second, LogKeep: 256 << 20,
		DrainTimeout: 10 * time.Second, TakeOver: 250 * time.Millisecond,
	}
	if c.relay != want {
		t.Errorf("defaults of the flags\n%+v\nwant those of package outbox\n%+v", c.relay, want)
	}
}

func TestOutboxExamplesAreValid(t *testing.T) {
	texts := []string{}
	for _, path := range []string{"../../../docs/outbox.md", "../../../contrib/outbox.yaml"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, ".yaml") {
			texts = append(texts, string(text))
			continue
		}
		for _, block := range strings.Split(string(text), "```yaml\n")[1:] {
			block, _, _ := strings.Cut(block, "```")
			texts = append(texts, block)
		}
	}
	if len(texts) < 2 {
		t.Errorf("found %d examples", len(texts))
	}
	for _, text := range texts {
		if _, err := outboxLoader("relay").Check("example.yaml", []byte(text)); err != nil {
			t.Errorf("%v, in\n%s", err, text)
		}
	}
}

// The reference in docs/outbox.md is written by this test with -update, and
// otherwise compared.
func TestOutboxReference(t *testing.T) {
	clitest.Reference(t, "../../../docs/outbox.md", outboxReference())
}

func outboxReference() string {
	var b strings.Builder
	for _, group := range outboxGroups {
		if group == cli.OwnFlags {
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n| Flag | Default | Of | Meaning |\n|---|---|---|---|\n", group)
		for _, o := range outboxOptions() {
			if o.Group != group {
				continue
			}
			flag, def, verbs := "--"+o.Name, o.Default, "all"
			if o.Arg != "" {
				flag += " " + o.Arg
			}
			if def != "" {
				def = "`" + def + "`"
			}
			if o.Verbs != nil {
				verbs = strings.Join(o.Verbs, ", ")
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", flag, def, verbs, o.Help)
		}
	}
	return b.String() + "\n"
}
