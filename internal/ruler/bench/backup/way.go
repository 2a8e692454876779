package backupbench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// way is a tool at some settings: how it makes an archive in an empty directory, checks it, and
// restores it into an empty database.
type way struct {
	name string
	dump func(db place, dir string) pipeline
	// check reads the whole archive back. Nil: the tool cannot.
	check func(dir string) pipeline
	// restore is nil for ways that are only measured as dumps.
	restore func(db place, dir string) pipeline
	// restoreName is the name in experiments on restores. Default: name.
	restoreName string
	// only names the experiment that the way is for. Default: both.
	only string
	// root is the directory below which archives are files, if a server stores them. Default:
	// the run's directory.
	root string
	// optional ways are left out, with a note, if the tool cannot run them, for example because
	// it was built without a compression.
	optional bool
	// tells is set if the program reports in JSON about itself.
	tells bool
}

// place is the address of a database, for programs. Passwords are only in env: all users can
// see the arguments of a process.
type place struct {
	dsn                        string // URL, without a password
	database, host, port, user string
	env                        []string
	secret                     bool // env contains a password
}

// The two kinds of experiments with whole programs.
const (
	dumps    = "dump"
	restores = "restore"
)

// program is an installed program.
type program struct {
	path    string
	version string // "15.18"
	major   int
}

var versionPattern = regexp.MustCompile(`(\d+)(\.\d+)*`)

// inspect asks a program for its version.
func inspect(ctx context.Context, path string) (program, bool) {
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return program{}, false
	}
	return parseVersion(path, string(out))
}

// parseVersion finds the version in a program's output. MariaDB's programs print a protocol
// version before the one that counts.
func parseVersion(path, said string) (program, bool) {
	if _, rest, ok := strings.Cut(said, "Distrib "); ok {
		said = rest
	} else if _, rest, ok := strings.Cut(said, "from "); ok {
		said = rest
	} else if _, rest, ok := strings.Cut(said, "(PostgreSQL) "); ok {
		said = rest
	}
	v := versionPattern.FindString(said)
	if v == "" {
		return program{}, false
	}
	first, _, _ := strings.Cut(v, ".")
	major, err := strconv.Atoi(first)
	return program{path, v, major}, err == nil
}

// find lists the programs of a name in directories and the PATH, one for each version, the
// oldest first.
func find(ctx context.Context, dirs []string, name string) []program {
	var paths []string
	for _, dir := range dirs {
		paths = append(paths, filepath.Join(dir, name))
	}
	if p, err := exec.LookPath(name); err == nil {
		paths = append(paths, p)
	}
	var out []program
	for _, path := range paths {
		p, ok := inspect(ctx, path)
		if ok && !slices.ContainsFunc(out, func(o program) bool { return o.version == p.version }) {
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(a, b program) int { return a.major - b.major })
	return out
}

// beside returns a program in the same directory.
func (p program) beside(name string) string { return filepath.Join(filepath.Dir(p.path), name) }

// installed returns the path of a program in one of the directories or in the PATH, "" if there
// is none.
func installed(dirs []string, name string) string {
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 {
			return path
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// weirWay is weir at some settings, as a separate process.
func weirWay(binary, name string, backup, restore []string) way {
	return weirAt(binary, name, backup, restore, nil, func(dir string) string { return dir })
}

// weirAt is weir with its archive at the location for a directory. env is the environment that
// this needs.
func weirAt(binary, name string, backup, restore, env []string, location func(dir string) string) way {
	with := func(own []string) []string { return append(slices.Clone(own), env...) }
	return way{
		name: name, tells: true,
		dump: func(db place, dir string) pipeline {
			argv := append([]string{binary, "backup", db.dsn, "--to", location(dir), "--quiet", "--json"}, backup...)
			return pipeline{stages: [][]string{argv}, env: with(db.env)}
		},
		check: func(dir string) pipeline {
			return pipeline{stages: [][]string{{binary, "verify", location(dir), "--quiet"}}, env: with(nil)}
		},
		restore: func(db place, dir string) pipeline {
			argv := append([]string{binary, "restore", location(dir), "--to", db.dsn, "--quiet", "--json"}, restore...)
			return pipeline{stages: [][]string{argv}, env: with(db.env)}
		},
	}
}

// weirWays are weir's sides. noAnalyze is the flag that leaves statistics to the server, as
// other tools do; "" for an engine without them.
func weirWays(binary string, jobs int, plan Plan, noAnalyze string) []way {
	j := "--jobs=" + strconv.Itoa(jobs)
	restore := []string{j}
	if noAnalyze != "" {
		restore = append(restore, noAnalyze)
	}
	main := weirWay(binary, "weir", []string{j, "--compress=zstd:1"}, restore)
	out := []way{main}
	level := func(name string, flags ...string) {
		w := weirWay(binary, name, append([]string{j}, flags...), restore)
		w.only = dumps
		out = append(out, w)
	}
	level("weir, zstd:3", "--compress=zstd:3")
	level("weir, none", "--compress=none")
	if plan.Slow {
		level("weir, lz4", "--compress=lz4:1")
		level("weir, gzip:6", "--compress=gzip:6")
		level("weir, without row sums", "--compress=zstd:1", "--checksums=false")
	}
	if noAnalyze != "" {
		w := weirWay(binary, "weir, with ANALYZE", []string{j, "--compress=zstd:1"}, []string{j})
		w.only = restores
		out = append(out, w)
	}
	return out
}

// profileWays are weir with each of its profiles.
func profileWays(binary string, names []string) []way {
	var out []way
	for _, n := range names {
		out = append(out, weirWay(binary, "weir, "+n, []string{"--profile=" + n, "--compress=zstd:1"}, []string{"--profile=" + n}))
	}
	return out
}

// jobsWays are weir with each number of jobs.
func jobsWays(binary string, jobs []int) []way {
	var out []way
	for _, n := range jobs {
		flag := "--jobs=" + strconv.Itoa(n)
		name := fmt.Sprintf("weir, %d jobs", n)
		if n == 1 {
			name = "weir, 1 job"
		}
		out = append(out, weirWay(binary, name, []string{flag, "--compress=zstd:1"}, []string{flag}))
	}
	return out
}

// adaptiveWays are weir with a fixed number of jobs, and with an adaptive one that starts at
// one job. Tables are split, so that there are enough jobs.
func adaptiveWays(binary string, jobs int) []way {
	fixed := "--jobs=" + strconv.Itoa(jobs)
	follow := []string{"--jobs=1", "--max-jobs=" + strconv.Itoa(4*jobs)}
	chunks := []string{"--chunk-size=1MB", "--compress=zstd:1"}
	return []way{
		weirWay(binary, fmt.Sprintf("weir, %d jobs", jobs), append(slices.Clone(chunks), fixed), []string{fixed}),
		weirWay(binary, fmt.Sprintf("weir, 1 to %d jobs", 4*jobs), append(slices.Clone(chunks), follow...), follow),
	}
}

// settingWays are restores of one archive of weir with other settings of the sessions: all of
// them, or the few that differ most.
func settingWays(binary string, jobs int, all bool) []way {
	j := "--jobs=" + strconv.Itoa(jobs)
	of := func(name string, flags ...string) way {
		w := weirWay(binary, "weir", []string{j, "--compress=zstd:1"}, append([]string{j, "--no-analyze"}, flags...))
		w.restoreName = "weir, " + name
		return w
	}
	workers := []int{0, 2, 4}
	if all {
		workers = []int{0, 1, 2, 4, 8}
	}
	out := []way{of("as it is")}
	for _, n := range workers {
		out = append(out, of(fmt.Sprintf("index workers: %d", n), "--index-workers="+strconv.Itoa(n)))
	}
	out = append(out, of("settings of an SSD", "--set=effective_io_concurrency=200", "--set=random_page_cost=1.1"))
	if all {
		out = append(out, of("index memory 4 MB", "--index-memory=4MB"), of("index memory 1 GB", "--index-memory=1GB"))
	}
	return out
}

// describe is the command of a way for readers, without the server's address.
func (w way) describe(kind string) string {
	db, dir := place{dsn: "DSN", database: "DB", host: "HOST", port: "PORT", user: "USER"}, "DIR"
	p := w.dump
	if kind == restores {
		p = w.restore
	}
	line := p(db, dir)
	if w.tells { // builds that are compared may have other names
		line.stages[0][0] = "weir"
	}
	return line.String()
}

// named is the way's name in a kind of experiment.
func (w way) named(kind string) string {
	if kind == restores && w.restoreName != "" {
		return w.restoreName
	}
	return w.name
}

// fitting returns the ways whose name, or whose name in restores, matches one of the patterns,
// or all ways without patterns. A way of which only one name matches only takes part under that
// name.
func fitting(ways []way, patterns []string) []way {
	if len(patterns) == 0 {
		return ways
	}
	fits := func(name string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool {
			ok, err := path.Match(p, name)
			return ok && err == nil // Options.validate has checked it
		})
	}
	var out []way
	for _, w := range ways {
		dump, restore := fits(w.named(dumps)), fits(w.named(restores))
		switch {
		case dump && !restore && w.only == "":
			w.only = dumps
		case restore && !dump && w.only == "":
			w.only = restores
		}
		if w.only == dumps && dump || w.only == restores && restore || dump && restore {
			out = append(out, w)
		}
	}
	return out
}

// of returns the ways that take part in a kind of experiment.
func of(ways []way, kind string) []way {
	var out []way
	for _, w := range ways {
		if (w.only == "" || w.only == kind) && (kind == dumps || w.restore != nil) {
			out = append(out, w)
		}
	}
	return out
}

// archiveDir is the directory of a way's archive below a directory.
func archiveDir(dir, name string) string {
	return filepath.Join(dir, strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' {
			return r
		}
		return '-'
	}, name))
}
