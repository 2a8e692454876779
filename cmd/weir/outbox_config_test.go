package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
		clearEnvironment(t)
		for name, value := range tt.env {
			t.Setenv(name, value)
		}
		src := outboxSources{verb: "relay", flags: map[string]string{}, getenv: os.Getenv}
		if tt.db != "" {
			src.flags["db"] = tt.db
		}
		if tt.sink != "" {
			src.flags["sink"] = tt.sink
		} else if tt.env["WEIR_OUTBOX_SINK"] == "" {
			src.flags["sink"] = "stdout:"
		}
		c, err := src.load(outboxOptions())
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		c.warnOfPasswords(newLog(&b, "text", c.logLevel))
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
	write(t, file, "db: sqlite:file.db\nsink: 'stdout:'\nworkers: 7\npartition_keep: 30d\npurge_after: 2w\nunordered: yes\n")
	if _, err := (&outboxSources{verb: "relay", getenv: func(string) string { return "" }, file: file}).load(outboxOptions()); err == nil {
		t.Error("yes is no boolean of this file, and was taken")
	}
	write(t, file, "db: sqlite:file.db\nsink: 'stdout:'\nworkers: 7\npartition_keep: 30d\npurge_after: 2w\nunordered: true\n")
	for _, tt := range []struct {
		env, flag string
		want      int
	}{{"", "", 7}, {"8", "", 8}, {"8", "9", 9}, {"", "9", 9}} {
		src := outboxSources{verb: "relay", file: file, flags: map[string]string{}, getenv: func(name string) string {
			return map[string]string{"WEIR_OUTBOX_WORKERS": tt.env}[name]
		}}
		if tt.flag != "" {
			src.flags["workers"] = tt.flag
		}
		c, err := src.load(outboxOptions())
		if err != nil || c.relay.Publishers != tt.want {
			t.Errorf("environment %q, flag %q: %d, %v; want %d", tt.env, tt.flag, c.relay.Publishers, err, tt.want)
		}
		if c.maintenance.Partitions.Keep != 30*24*time.Hour || c.maintenance.PurgeDelivered != 14*24*time.Hour || !c.relay.Unordered {
			t.Errorf("read %+v, %+v", c.maintenance, c.relay)
		}
	}
	src := outboxSources{verb: "relay", flags: map[string]string{"db": "x.db", "sink": "stdout:"}, getenv: func(string) string { return "" }}
	c, err := src.load(outboxOptions())
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
	options := outboxOptions()
	names := make([]option, len(options))
	for i := range options {
		names[i] = options[i].option
	}
	texts := []string{}
	for _, path := range []string{"../../docs/outbox.md", "../../contrib/outbox.yaml"} {
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
		found, err := readConfigFile("example.yaml", []byte(text), names)
		if err != nil {
			t.Errorf("%v, in\n%s", err, text)
		}
		var c outboxConfig
		for i := range options {
			if g, ok := found[options[i].key()]; ok {
				if err := options[i].put(&c, g.value); err != nil {
					t.Errorf("%s: %v", g.source, err)
				}
			}
		}
	}
}

// The reference in docs/outbox.md is written by this test with -update, and
// otherwise compared.
func TestOutboxReference(t *testing.T) {
	const path, begin, end = "../../docs/outbox.md", "-update` -->\n", "<!-- end of reference -->"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	have, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the reference", path)
	}
	want := outboxReference()
	if *update {
		write(t, path, head+begin+want+end+tail)
		return
	}
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(have, "\n")); diff != "" {
		t.Errorf("%s is not what the flags are (-want +have), rewritten by -update:\n%s", path, diff)
	}
}

func outboxReference() string {
	var b strings.Builder
	for _, group := range outboxGroups {
		if group == groupVerb {
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n| Flag | Default | Of | Meaning |\n|---|---|---|---|\n", group)
		for _, o := range outboxOptions() {
			if o.group != group {
				continue
			}
			flag, def, verbs := "--"+o.name, o.def, "all"
			if o.arg != "" {
				flag += " " + o.arg
			}
			if def != "" {
				def = "`" + def + "`"
			}
			if o.verbs != nil {
				verbs = strings.Join(o.verbs, ", ")
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", flag, def, verbs, o.help)
		}
	}
	return b.String() + "\n"
}
