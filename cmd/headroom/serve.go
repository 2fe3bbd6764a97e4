package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/internal/web"
)

func serveCommand() *cobra.Command {
	var addr string
	var names []string
	cmd := &cobra.Command{
		Use:   "serve FILE|FOLDER",
		Short: "Show memory snapshots in a browser, also such as are larger than a page can be",
		Long: `Serve shows the page of headroom report for a file, or for those below a folder,
and sends what is on the screen and no more. It reads only, below that folder only,
and answers only to this machine unless --addr says otherwise. Ctrl-C ends it.`,
		Example: `  headroom serve snapshot.pickle
  headroom serve /runs/snapshots --addr 127.0.0.1:8080`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("serve needs one file or one folder")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return serve(cmd.Context(), args[0], addr, names, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&addr, "addr", "127.0.0.1:0", "`ADDRESS` to listen at; a port alone is on 127.0.0.1, and port 0 any that is free")
	fl.StringArrayVar(&names, "host", nil, "`NAME` by which browsers reach the server, beside its address and localhost; may be given again")
	return cmd
}

// serve shows a file or a folder until ctx ends, which is its success.
func serve(ctx context.Context, path, addr string, names []string, stdout, stderr io.Writer) (err error) {
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	l, err := web.OpenLibrary(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if addr, err = addressOf("--addr", addr); err != nil {
		return err
	}
	l.Follow = func(name string, info fs.FileInfo, in io.Reader) (io.Reader, func()) {
		f := follow(in, name, info, stderr)
		return f, f.end
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return usagef("--addr %s: %w", addr, err)
	}
	if err := fact(stdout, "page", "http://%s/", listener.Addr()); err != nil {
		return errors.Join(err, listener.Close())
	}
	return web.Serve(ctx, listener, web.NewServer(l, web.ServerOptions{Version: version(), Names: names}), web.DefaultLimits())
}
