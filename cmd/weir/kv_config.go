package main

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/kvd/peer"
)

// kvSources are the places where the options of a replica are looked for.
type kvSources struct {
	flags  map[string]string // by flag name, only those given
	getenv func(string) string
	file   string
}

// load adds up the configuration: flag, else environment, else file, else
// default. Its errors are the user's to correct.
func (s *kvSources) load(options []kvOption) (kvConfig, error) {
	var c kvConfig
	inFile := map[string]given{}
	if file := cmp.Or(s.file, s.getenv("WEIR_KV_CONFIG")); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return c, fmt.Errorf("read configuration: %w", err)
		}
		names := make([]option, len(options))
		for i := range options {
			names[i] = options[i].option
		}
		if inFile, err = readConfigFile(file, text, names); err != nil {
			return c, err
		}
	}
	for i := range options {
		o := &options[i]
		g, ok := s.find(o, inFile)
		if !ok {
			continue
		}
		err := errors.New("want a single value") // a list, which only the proxy's file has
		if g.apply == nil {
			err = o.put(&c, g.value)
		}
		if err != nil {
			return c, fmt.Errorf("%s %q: %w", g.source, g.value, err)
		}
	}
	return c, c.complete()
}

func (s *kvSources) find(o *kvOption, inFile map[string]given) (given, bool) {
	if v, ok := s.flags[o.name]; ok {
		return given{value: v, source: "--" + o.name}, true
	}
	if v := s.getenv(o.env()); v != "" {
		return given{value: v, source: o.env()}, true
	}
	if g, ok := inFile[o.key()]; ok {
		return g, true
	}
	return given{value: o.def, source: "default of --" + o.name}, o.def != ""
}

// complete reads the files that options name and checks what several options say
// together.
func (c *kvConfig) complete() error {
	r := &c.replica
	r.Memory = c.durability == "memory"
	if err := c.trust(); err != nil {
		return err
	}
	if r.Redis == "" {
		for _, m := range r.Members {
			if m.ID == r.ID {
				r.Redis = m.Client
			}
		}
	}
	if r.Redis != "" && len(r.Front.Users) == 0 && !r.Insecure && !isLoopback(r.Redis) {
		return fmt.Errorf("--resp %s can be reached by others: give --resp-password-file, or permit it with --insecure", r.Redis)
	}
	return r.Validate()
}

// trust reads secrets, passwords and certificates.
func (c *kvConfig) trust() (err error) {
	r := &c.replica
	if c.secretFile != "" {
		text, err := os.ReadFile(c.secretFile)
		if err != nil {
			return fmt.Errorf("--secret-file: %w", err)
		}
		if r.Secret = bytes.TrimSpace(text); len(r.Secret) < minSecret {
			return fmt.Errorf("--secret-file: %s holds %d bytes, want at least %d, such as those of openssl rand -hex 32", c.secretFile, len(r.Secret), minSecret)
		}
	}
	if c.passwordFile != "" {
		if r.Front.Users, err = readRedisUsers(c.passwordFile); err != nil {
			return fmt.Errorf("--resp-password-file: %w", err)
		}
	}
	t := &c.tls
	switch {
	case (t.cert == "") != (t.key == ""):
		return errors.New("--tls-cert and --tls-key go together: one is missing")
	case t.cert == "" && (t.ca != "" || c.redisTLS):
		return errors.New("--tls-ca and --resp-tls need --tls-cert and --tls-key")
	case t.cert == "":
		return nil
	}
	if c.redisTLS {
		pair, err := tls.LoadX509KeyPair(t.cert, t.key)
		if err != nil {
			return fmt.Errorf("--tls-cert: load certificate: %w", err)
		}
		r.Front.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	if t.ca == "" {
		if c.redisTLS {
			return nil // for Redis clients alone
		}
		return errors.New("--tls-cert needs --tls-ca: replicas and native clients have certificates on both sides")
	}
	if r.TLS, err = peer.LoadCertificates(t.cert, t.key, t.ca); err != nil {
		return fmt.Errorf("--tls-cert: %w", err)
	}
	return nil
}

// minSecret is the least length of a shared secret, in bytes.
const minSecret = 16

// isLoopback tells whether only this machine reaches an address.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// log is where the verb says what it does.
func (c *kvConfig) log(w io.Writer) *slog.Logger {
	return newLog(w, c.logFormat, c.logLevel).With("replica", strconv.FormatUint(c.replica.ID, 10))
}

// addOptions gives the verb the flags of its options and the usage that shows
// them in groups.
func (s *kvSources) addOptions(cmd *cobra.Command, options []kvOption) {
	f := cmd.Flags()
	f.SortFlags = false
	args := map[string]string{"config": argFile}
	for i := range options {
		o := &options[i]
		args[o.name] = o.arg
		flag := f.VarPF(&textFlag{o: &o.option, into: s.flags}, o.name, "", o.help)
		flag.DefValue, flag.Hidden = o.def, o.hidden
		if o.arg == "" {
			flag.NoOptDefVal = "true"
		}
		if o.arg == argFile {
			_ = cmd.MarkFlagFilename(o.name) // for completion; the flag exists
		}
	}
	f.StringVarP(&s.file, "config", "c", "", "YAML file with any of these options; WEIR_KV_CONFIG names one too")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // the flag exists
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		w := cmd.OutOrStderr()
		fmt.Fprintf(w, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
		for _, group := range kvGroups {
			set := pflag.NewFlagSet(group, pflag.ContinueOnError)
			set.SortFlags = false
			for i := range options {
				if o := &options[i]; o.group == group {
					set.AddFlag(f.Lookup(o.name))
				}
			}
			if group == groupOps {
				set.AddFlag(f.Lookup("config"))
				if help := f.Lookup("help"); help != nil {
					set.AddFlag(help)
				}
			}
			fmt.Fprintf(w, "\n%s:\n%s", group, flagTable(set, args))
		}
		return nil
	})
}
