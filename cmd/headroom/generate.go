package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/data"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/generate"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

type generateFlags struct {
	device  string
	model   string
	weights string
	prompts []string
	file    string
	most    int
	json    bool
	live    liveFlag
	generate.Sampling
}

func generateCommand() *cobra.Command {
	f := &generateFlags{}
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Continue texts inside a memory budget",
		Long: `Generate continues prompts by a language model, many at a time. Keys and values
of attention lie in pages, which texts take as they grow and share where they
begin alike; what the budget holds beside the model is for them. A text that
finds no page waits.

What comes depends on the prompt, the seed and the flags, not on the budget.`,
		Example: `  headroom generate --model runs/books --prompt "It was"
  headroom generate --model gpt2 --weights model.safetensors --prompts questions.txt --temperature 0 --json
  headroom generate --model runs/books --device host:64MiB --max-tokens 200 --top-p 0.9 --seed 7 --prompt Light --prompt Glass`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.device, "device", "host:1GiB", "`DEVICE` to run on, with the memory that there is: host:SIZE")
	fl.StringVar(&f.model, "model", "", "`DIR` of a trained model (config.json, model.safetensors), or NAME of one whose weights --weights gives")
	fl.StringVar(&f.weights, "weights", "", "safetensors `FILE` of the weights, with Hugging Face's names (default: model.safetensors of DIR; random for a NAME)")
	fl.StringArrayVar(&f.prompts, "prompt", nil, "`TEXT` to continue; may be given several times")
	fl.StringVar(&f.file, "prompts", "", "`FILE` with a text to continue in each line, or - for standard input")
	fl.IntVar(&f.most, "max-tokens", 100, "new tokens of a text at most")
	fl.Float64Var(&f.Temperature, "temperature", 1, "below 1 the probable tokens come more often, above 1 less; 0: always the most probable")
	fl.IntVar(&f.TopK, "top-k", 0, "choose among so many of the most probable tokens (0: all)")
	fl.Float64Var(&f.TopP, "top-p", 0, "choose among the fewest tokens whose probabilities come to this (0: all)")
	fl.Uint64Var(&f.Seed, "seed", 1, "decides the choices, and random weights; each further text has the next seed")
	f.live.add(fl)
	fl.BoolVar(&f.json, "json", false, "print texts, tokens and figures as JSON")
	return cmd
}

// continued is one text of the report.
type continued struct {
	Prompt string          `json:"prompt"`
	Text   string          `json:"text"` // what came
	Tokens []int32         `json:"tokens"`
	End    generate.Reason `json:"end"` // empty if the command was interrupted
}

// generated is the report.
type generated struct {
	Model           string         `json:"model"`
	Device          string         `json:"device"`
	BudgetBytes     uint64         `json:"budget_bytes"`
	ParameterBytes  uint64         `json:"parameter_bytes"`
	PeakBytes       uint64         `json:"peak_bytes"`
	ReservedBytes   uint64         `json:"reserved_bytes"`
	Seconds         float64        `json:"seconds"`
	TokensPerSecond float64        `json:"tokens_per_second"`
	Cache           generate.Stats `json:"cache"`
	Texts           []*continued   `json:"texts"`
}

func (f *generateFlags) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	prompts, err := f.read(stdin)
	if err != nil {
		return err
	}
	m, err := f.find()
	if err != nil {
		return usageError{err}
	}
	if err := f.live.listen(); err != nil {
		return err
	}
	defer f.live.close()
	dev, err := openDevice(f.device, 1)
	if err != nil {
		return usageError{err}
	}
	if dev.Info().Kind == device.Null {
		return errors.Join(usagef("%s computes nothing, so that no text comes there: give --device host:SIZE", f.device), dev.Close())
	}
	g := &generation{generateFlags: f, stderr: stderr, page: newTexts(stdout, prompts, f.json)}
	err = errors.Join(g.onDevice(ctx, dev, m, prompts), dev.Close())
	if err == nil || errors.Is(err, context.Canceled) && g.report.Seconds > 0 {
		if errors.Is(err, context.Canceled) {
			err = errInterrupted
		}
		return errors.Join(g.write(stdout, stderr), err)
	}
	return err
}

// read gives the prompts.
func (f *generateFlags) read(stdin io.Reader) ([]string, error) {
	prompts := f.prompts
	if f.model == "" {
		return nil, usagef("--model DIR or NAME is missing: give the folder of a training run, or a model's name and its --weights")
	}
	if f.file != "" {
		in, err := openInput(f.file, stdin)
		if err != nil {
			return nil, usageError{err}
		}
		defer in.Close()
		lines := bufio.NewScanner(in)
		lines.Buffer(nil, 1<<24)
		for lines.Scan() {
			prompts = append(prompts, lines.Text())
		}
		if err := lines.Err(); err != nil {
			return nil, naming(f.file, err)
		}
	}
	if len(prompts) == 0 {
		return nil, usagef("no text to continue: give --prompt TEXT or --prompts FILE")
	}
	return prompts, nil
}

// generation is one run of the command.
type generation struct {
	*generateFlags
	page   *texts
	stderr io.Writer
	report generated
}

// onDevice loads the model and continues the prompts.
func (g *generation) onDevice(ctx context.Context, dev device.Device, m *languageModel, prompts []string) error {
	var o alloc.Options
	if g.live.wanted() {
		o.StackDepth = 24
	}
	mem, err := alloc.New(dev, o)
	if err != nil {
		return err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return errors.Join(err, mem.Close())
	}
	rt, end := tensor.New(mem, stream), g.show(mem)
	if err = m.load(rt, g.Seed); err == nil {
		err = g.engine(ctx, rt, m, prompts)
		m.release()
	}
	st, info := mem.Stats(), dev.Info()
	r := &g.report
	r.Model, r.Device, r.BudgetBytes = g.model, info.Name, info.Capacity
	r.ParameterBytes, r.PeakBytes, r.ReservedBytes = st.ByPurpose[trace.Parameter].Peak, st.PeakLive, st.PeakReserved
	return errors.Join(err, end(), mem.Close(), stream.Close())
}

// show shows the memory to browsers until end is called.
func (g *generation) show(mem *alloc.Allocator) (end func() error) {
	_, end = g.live.show(g.model, mem, g.stderr)
	return end
}

// engine queues the prompts and runs.
func (g *generation) engine(ctx context.Context, rt *tensor.Runtime, m *languageModel, prompts []string) error {
	e, err := generate.New(rt, m.Model, generate.Options{})
	if err != nil {
		return usageError{err}
	}
	defer e.Close()
	tok, err := m.tokenizer()
	if err != nil {
		return err
	}
	g.page.tok = tok
	for i, p := range prompts {
		r := generate.Request{Prompt: tok.Encode(p), MaxTokens: g.most, Sampling: g.Sampling}
		r.Seed += uint64(i)
		if tok.VocabSize() > 256 {
			r.Stop = []int32{tok.Separator()} // bytes have none of their own
		}
		if len(r.Prompt) == 0 {
			r.Prompt = []int32{tok.Separator()}
		}
		if _, err := e.Add(r); err != nil {
			return usageError{fmt.Errorf("prompt %d: %w", i+1, err)}
		}
	}
	start := time.Now()
	err = e.Run(ctx, g.page.add)
	g.report.Seconds = time.Since(start).Seconds()
	g.report.Cache = e.Stats()
	g.report.TokensPerSecond = float64(g.report.Cache.Generated) / g.report.Seconds
	return errors.Join(err, g.page.err)
}

// write ends the output: the report, or after the texts the figures.
func (g *generation) write(stdout, stderr io.Writer) error {
	r := &g.report
	r.Texts = g.page.all
	if g.json {
		return json.NewEncoder(stdout).Encode(r)
	}
	g.page.finish()
	c := r.Cache
	fact(stderr, "tokens", "%d in %.1f s, %.0f tokens/s; at most %d texts at a time, %d of %d prompt tokens found, %d preemptions",
		c.Generated, r.Seconds, r.TokensPerSecond, c.MostRunning, c.HitTokens, c.PromptTokens, c.Preemptions)
	err := fact(stderr, "peak", "%s of %s; keys and values at most %s in pages of %s, %s of it unused",
		bytesText(r.PeakBytes), size.Format(r.BudgetBytes), size.Format(c.Peak.UsedBytes), size.Format(c.PageBytes), size.Format(c.Peak.WasteBytes))
	return errors.Join(err, g.page.err)
}

// texts shows texts as they come, one after the other in the order of their
// prompts; of later ones what has come is kept until it is their turn.
type texts struct {
	w     io.Writer
	quiet bool
	tok   data.Tokenizer
	all   []*continued
	shown int // texts that are complete, and shown
	bytes int // of the next one that are shown
	err   error
}

func newTexts(w io.Writer, prompts []string, quiet bool) *texts {
	t := &texts{w: w, quiet: quiet}
	for _, p := range prompts {
		t.all = append(t.all, &continued{Prompt: p, Tokens: []int32{}})
	}
	return t
}

// add takes a token.
func (t *texts) add(k generate.Token) {
	c := t.all[k.Request]
	c.Tokens = append(c.Tokens, k.Token)
	c.Text, c.End = c.Text+t.tok.Decode([]int32{k.Token}), k.End
	for !t.quiet && t.shown < len(t.all) {
		c := t.all[t.shown]
		t.show(c.Prompt + c.Text)
		if c.End == "" {
			return
		}
		t.print(strings.Repeat("\n", min(2, len(t.all)-t.shown)))
		t.shown, t.bytes = t.shown+1, 0
	}
}

// show prints what is new in a text.
func (t *texts) show(text string) {
	t.print(text[t.bytes:])
	t.bytes = len(text)
}

// finish ends the line of a text that was interrupted.
func (t *texts) finish() {
	if t.bytes > 0 {
		t.print("\n")
	}
}

func (t *texts) print(s string) {
	if t.err == nil {
		_, t.err = io.WriteString(t.w, s)
	}
}
