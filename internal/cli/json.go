package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// JSON is the flag --json of a verb, which makes it print a T. The reference
// docs/reference/json.md is generated from these types, so that it always matches the output.
// The zero value is a flag that was not given.
type JSON[T any] struct{ given bool }

// Flag adds --json to the flags of a verb.
func (j *JSON[T]) Flag(f *pflag.FlagSet, usage string) {
	f.AddFlag(&pflag.Flag{
		Name: "json", Usage: usage, Value: &jsonFlag{&j.given, reflect.TypeFor[T]()}, DefValue: "false", NoOptDefVal: "true",
	})
}

// Given reports whether --json was given.
func (j *JSON[T]) Given() bool { return j.given }

// Print prints v on indented lines.
func (j *JSON[T]) Print(w io.Writer, v T) error { return PrintJSON(w, v) }

// PrintOr prints v if --json was given, and a line of text otherwise.
func (j *JSON[T]) PrintOr(w io.Writer, v T, text any) error {
	if j.given {
		return j.Print(w, v)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// Line prints v on one line, with &, < and > as they are.
func (j *JSON[T]) Line(w io.Writer, v T) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return nil
}

// JSONOf returns the type that a verb prints with --json, or nil if it has no such flag.
func JSONOf(cmd *cobra.Command) reflect.Type {
	if flag := cmd.Flags().Lookup("json"); flag != nil {
		if j, ok := flag.Value.(*jsonFlag); ok {
			return j.prints
		}
	}
	return nil
}

// jsonFlag is a boolean flag that knows the type of the verb's output.
type jsonFlag struct {
	given  *bool
	prints reflect.Type
}

func (j *jsonFlag) String() string   { return strconv.FormatBool(*j.given) }
func (j *jsonFlag) Type() string     { return "bool" }
func (j *jsonFlag) IsBoolFlag() bool { return true }
func (j *jsonFlag) Set(v string) (err error) {
	*j.given, err = strconv.ParseBool(v)
	return err
}
