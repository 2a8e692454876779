package resp

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// trackingOptions are the options of CLIENT TRACKING.
type trackingOptions struct {
	byPrefix, optIn, optOut, noLoop bool
	prefixes                        []string
}

func clientTracking(k *call) {
	c := k.c
	on := is(k.args[2], "ON")
	if !on && !is(k.args[2], "OFF") {
		k.fail(syntaxError)
		return
	}
	o, why := readTracking(k.args[3:])
	if why == "" && on {
		why = c.trackingConflict(&o)
	}
	if why != "" {
		k.fail(why)
		return
	}
	if !on {
		c.stopTracking()
		k.ok()
		return
	}
	l := &c.listener
	c.srv.tracker.set(l, func() {
		l.mode, l.noLoop = byKey, o.noLoop
		if o.byPrefix {
			l.mode = byPrefix
			if len(o.prefixes) == 0 && len(l.prefixes) == 0 {
				o.prefixes = []string{""}
			}
			l.prefixes = append(l.prefixes, o.prefixes...)
		}
	})
	c.optIn, c.optOut = o.optIn, o.optOut
	k.ok()
}

func readTracking(args [][]byte) (o trackingOptions, why string) {
	for ; len(args) > 0; args = args[1:] {
		switch {
		case is(args[0], "BCAST"):
			o.byPrefix = true
		case is(args[0], "OPTIN"):
			o.optIn = true
		case is(args[0], "OPTOUT"):
			o.optOut = true
		case is(args[0], "NOLOOP"):
			o.noLoop = true
		case is(args[0], "PREFIX") && len(args) > 1:
			o.prefixes = append(o.prefixes, string(args[1]))
			args = args[1:]
		case is(args[0], "REDIRECT"):
			return o, "ERR weir sends invalidations to the connection itself: use RESP3 (HELLO 3) instead of REDIRECT"
		default:
			return o, syntaxError
		}
	}
	return o, ""
}

// trackingConflict returns an error if the options conflict, in Redis' words where Redis
// returns an error, too.
func (c *conn) trackingConflict(o *trackingOptions) string {
	l := &c.listener
	switch {
	case c.proto < 3:
		return "ERR invalidations need RESP3: send HELLO 3 first"
	case len(o.prefixes) > 0 && !o.byPrefix:
		return "ERR PREFIX option requires BCAST mode to be enabled"
	case l.mode != untracked && o.byPrefix != (l.mode == byPrefix):
		return "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a different mode."
	case o.byPrefix && (o.optIn || o.optOut):
		return "ERR OPTIN and OPTOUT are not compatible with BCAST"
	case o.optIn && o.optOut:
		return "ERR You can't specify both OPTIN mode and OPTOUT mode"
	case o.optIn && c.optOut, o.optOut && c.optIn:
		return "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a different mode."
	}
	if why := tooManyPrefixes(slices.Concat(l.prefixes, o.prefixes)...); why != "" {
		return why
	}
	return overlap(l.prefixes, o.prefixes)
}

// overlap returns an error if one of the prefixes contains another.
func overlap(existing, asked []string) string {
	for i, p := range asked {
		contains := func(q string) bool { return strings.HasPrefix(p, q) || strings.HasPrefix(q, p) }
		if n := slices.IndexFunc(existing, contains); n >= 0 {
			return fmt.Sprintf("ERR Prefix '%s' overlaps with an existing prefix '%s'. Prefixes for a single client must not overlap.", p, existing[n])
		}
		if n := slices.IndexFunc(asked[i+1:], contains); n >= 0 {
			return fmt.Sprintf("ERR Prefix '%s' overlaps with another provided prefix '%s'. Prefixes for a single client must not overlap.", p, asked[i+1+n])
		}
	}
	return ""
}

// stopListening stops CLIENT TRACKING and WEIR.WATCH.
func (c *conn) stopListening() {
	c.stopTracking()
	c.srv.tracker.set(&c.listener, func() { c.listener.watched = nil })
}

// stopTracking executes CLIENT TRACKING OFF.
func (c *conn) stopTracking() {
	l := &c.listener
	if l.mode == untracked {
		return
	}
	c.srv.tracker.set(l, func() { l.mode, l.prefixes, l.noLoop = untracked, nil, false })
	c.optIn, c.optOut, c.caching = false, false, cachingDefault
}

func clientCaching(k *call) {
	c := k.c
	yes := is(k.args[2], "YES")
	switch {
	case c.listener.mode == untracked:
		k.fail("ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled")
	case !yes && !is(k.args[2], "NO"):
		k.fail(syntaxError)
	case yes && !c.optIn:
		k.fail("ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.")
	case !yes && !c.optOut:
		k.fail("ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.")
	case yes:
		c.caching = cachingYes
		k.ok()
	default:
		c.caching = cachingNo
		k.ok()
	}
}

func trackingInfo(k *call) {
	c := k.c
	l := &c.listener
	var flags []string
	add := func(name string, yes bool) {
		if yes {
			flags = append(flags, name)
		}
	}
	add("off", l.mode == untracked)
	add("on", l.mode != untracked)
	add("bcast", l.mode == byPrefix)
	add("optin", c.optIn)
	add("caching-yes", c.caching == cachingYes)
	add("optout", c.optOut)
	add("caching-no", c.caching == cachingNo)
	add("noloop", l.noLoop)
	k.dict(3)
	k.text("flags")
	k.set(len(flags))
	for _, f := range flags {
		k.text(f)
	}
	k.text("redirect")
	if l.mode == untracked {
		k.int(-1)
	} else {
		k.int(0)
	}
	k.text("prefixes")
	k.array(len(l.prefixes))
	for _, p := range l.prefixes {
		k.text(p)
	}
}

// track notes that the client may cache what a command reads.
func (k *call) track(cmd *wire.Command) {
	c := k.c
	if c.listener.mode == untracked || cmd.Verb.IsWrite() {
		return
	}
	if c.optIn && c.caching != cachingYes || c.optOut && c.caching == cachingNo {
		return
	}
	k.reply.read = true
	if c.listener.mode != byKey {
		return
	}
	switch cmd.Verb {
	case wire.Get, wire.TTL:
		c.tracked = append(c.tracked, cmd.Key)
	case wire.Many:
		c.tracked = append(c.tracked, cmd.Keys...)
	}
}
