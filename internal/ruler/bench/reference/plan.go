package reference

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/cli"
)

// Part is one command that measures for a document, in a separate process and directory.
type Part struct {
	Name     string // and of its directory: "000-postgres"
	Document string
	// Bench is the verb below weir bench that is required, "" for weir profile.
	Bench string
	Args  []string
}

// command is the part's command as a user would type it.
func (p *Part) command() string {
	words := []string{"weir"}
	for _, a := range p.Args {
		words = append(words, cli.ShellWord(a))
	}
	return strings.Join(words, " ")
}

// partsOf returns the parts of a document.
func partsOf(parts []Part, document string) []Part {
	return slices.DeleteFunc(slices.Clone(parts), func(p Part) bool { return p.Document != document })
}

// Plans lists the names of plans.
func Plans() []string { return []string{"mini", "full", "smoke"} }

// PartsOf returns the parts of a plan, in order: the quick ones that decide most of each
// document first. Smoke takes seconds for each; its figures mean nothing.
func PartsOf(plan string) ([]Part, error) {
	if !slices.Contains(Plans(), plan) {
		return nil, fmt.Errorf("--plan %q: want one of %s", plan, strings.Join(Plans(), ", "))
	}
	var out []Part
	add := func(name, document, verb string, args ...string) {
		p := Part{Name: name, Document: document, Bench: verb}
		if verb != "" {
			p.Args = []string{"bench", verb}
		}
		p.Args = append(p.Args, args...)
		out = append(out, p)
	}
	switch plan {
	case "smoke":
		for _, e := range []string{"postgres", "mariadb"} {
			add("000-"+e, "000", "proxy", "--engine", e, "--experiments", "inserts-4,leak", "--clients", "4", "--windows", "0,1", "--rounds", "1", "--duration", "100ms", "--leak", "1s")
			add("000-drivers-"+e, "000", "proxy", "--engine", e, "--experiments", "drivers", "--clients", "4", "--windows", "0,1", "--rounds", "1", "--duration", "100ms")
		}
		add("001", "001", "kv", "--plan", "smoke", "--preset", "curp-ho", "--experiments", "delay,validate,tunings,writer,cpu,grid")
		add("002", "002", "backup", "--plan", "smoke", "--experiments", "buffers-1024k,compression,copy-memory,direct-io")
		add("003", "003", "", "profile", "--lab", "--experiment", "pools", "--engine", "postgres", "--rounds", "1", "--duration", "100ms", "--warmup", "200ms", "--overhead-pairs", "0", "--strace", "--perf")
		add("004", "004", "outbox", "--plan", "smoke", "--engine", "mariadb", "--experiments", "screen,enqueue,mixed-2,grid,out-of-band")
	case "mini":
		for _, e := range []string{"postgres", "mariadb"} {
			experiments := "inserts-100"
			if e == "postgres" { // the heap is weir's own, whatever the server
				experiments += ",leak"
			}
			add("000-"+e, "000", "proxy", "--engine", e, "--experiments", experiments, "--clients", "100", "--windows", "0,1,10,100", "--rounds", "3", "--duration", "1s", "--leak", "6s")
			add("000-drivers-"+e, "000", "proxy", "--engine", e, "--experiments", "drivers", "--clients", "100", "--windows", "0,1,10,100", "--rounds", "2", "--duration", "400ms")
		}
		add("001", "001", "kv", "--plan", "mini", "--preset", "curp-ho", "--experiments", "delay,validate,tunings,length,writer,cpu,grid")
		add("002", "002", "backup", "--plan", "mini", "--size", "32MB", "--storage", "dir,s3", "--experiments", "buffers,compression,copy-memory,direct-io,dump-shop,restore-shop,storage-dump-shop,adaptive-dump-shop,settings-restore-shop")
		add("003", "003", "", "profile", "--lab", "--experiment", "pools", "--engine", "postgres", "--rounds", "3", "--duration", "1500ms", "--overhead-pairs", "0", "--strace", "--perf")
		add("004", "004", "outbox", "--plan", "mini", "--engine", "mariadb", "--workers", "4,8,16", "--batch", "100,200", "--records", "5000",
			"--payloads", "512,4096,131072", "--producers", "8", "--experiments", "screen,payload,enqueue-8,mixed-8,grid-8,out-of-band,partition", "--rounds", "2")
	case "full":
		for _, e := range []string{"postgres", "mariadb", "mysql"} {
			add("000-"+e, "000", "proxy", "--engine", e, "--experiments", "inserts,leak", "--clients", "100,1000", "--windows", "0,1,10,100", "--rounds", "6", "--leak", "10m")
			add("000-drivers-"+e, "000", "proxy", "--engine", e, "--experiments", "drivers", "--clients", "100", "--windows", "0,1,10,100", "--rounds", "6")
		}
		add("001", "001", "kv", "--plan", "full", "--preset", "curp-ho", "--experiments", "delay,validate,tunings,pendings,threads,length,presets,writer,cpu,grid", "--rounds", "6")
		add("002", "002", "backup", "--plan", "full", "--size", "256MB", "--shapes", "shop", "--rounds", "4", "--storage", "dir,s3")
		add("003", "003", "", "profile", "--lab", "--experiment", "pools", "--engine", "postgres", "--rounds", "8", "--cpu-profile", "--strace", "--perf")
		for _, e := range []string{"mariadb", "mysql"} {
			name := map[string]string{"mariadb": "004", "mysql": "004-mysql"}[e]
			add(name, "004", "outbox", "--plan", "full", "--engine", e, "--workers", "4,8,16", "--batch", "100,200", "--records", "200000,2000000",
				"--producers", "8", "--rounds", "3", "--experiments", "screen,records,payload,enqueue,mixed-8,grid-8,out-of-band,partition")
		}
	}
	return out, nil
}

// needs is a generous estimate of how many bytes a plan writes: server data, archives, samples.
func needs(plan string) uint64 {
	if plan == "full" {
		return 16 << 30
	}
	return 2 << 30
}

// choose returns the parts with the requested documents, names or experiments, such as 000,
// 000-postgres or 001/delay,tunings.
func choose(parts []Part, asked []string) ([]Part, error) {
	if len(asked) == 0 {
		return parts, nil
	}
	wanted := make(map[string][]string) // experiments by part
	var names []string
	for _, p := range parts {
		for _, name := range []string{p.Document, p.Name} {
			if name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	for _, a := range asked {
		where, experiment, _ := strings.Cut(a, "/")
		found := false
		for _, p := range parts {
			if where == "" || p.Name != where && p.Document != where {
				continue
			}
			found = true
			if experiment != "" && p.Bench == "" {
				return nil, fmt.Errorf("--experiments %s: %s has one experiment", a, p.Name)
			}
			if _, ok := wanted[p.Name]; !ok {
				wanted[p.Name] = nil
			}
			if experiment != "" {
				wanted[p.Name] = append(wanted[p.Name], experiment)
			}
		}
		if !found {
			return nil, fmt.Errorf("--experiments: no part %q: want some of %s, each also with /EXPERIMENT", where, strings.Join(names, ", "))
		}
	}
	var out []Part
	for _, p := range parts {
		experiments, ok := wanted[p.Name]
		if !ok {
			continue
		}
		if len(experiments) > 0 {
			p.Args = slices.Clone(p.Args)
			if i := slices.Index(p.Args, "--experiments"); i >= 0 {
				p.Args[i+1] = strings.Join(experiments, ",")
			}
		}
		out = append(out, p)
	}
	return out, nil
}
