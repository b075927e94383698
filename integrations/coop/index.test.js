// Against a real court: MEMECOURT_URL says where it is, MEMECOURT_PICTURE a data: address of a picture.
'use strict';

const assert = require('node:assert/strict');
const test = require('node:test');

const plugin = require('./index.js');

const { MEMECOURT_URL: url, MEMECOURT_PICTURE: picture } = process.env;
const signals = Object.fromEntries(
  plugin
    .createSignals({ integrationId: plugin.manifest.id, getCredential: async () => ({ url }) })
    .map(({ signalTypeId, signal }) => [signalTypeId, signal]),
);
const item = (data) => ({
  orgId: 'org',
  contentId: 'post-1',
  value: { data, itemType: { schema: [{ name: 'body', type: 'STRING' }, { name: 'image', type: 'IMAGE' }] } },
});

test('Coop takes the plugin', () => {
  const { manifest } = plugin;
  for (const name of ['id', 'name', 'version']) assert.equal(typeof manifest[name], 'string');
  assert.equal(typeof manifest.requiresConfig, 'boolean');
  assert.deepEqual(Object.keys(signals), manifest.signalTypeIds);
  const sections = manifest.modelCard.sections.map(({ id }) => id);
  const required = ['trainingData', 'policyAndTaxonomy', 'annotationMethodology', 'performanceBenchmarks'];
  required.push('biasAndLimitations', 'implementationGuidance', 'relevantLinks');
  for (const id of required) assert.ok(sections.includes(id), id);
});

test('an item is one meme, a picture or a text alone another', async () => {
  const whole = await signals.MEMECOURT_DECISION.run(item({ body: 'the printer jams on monday', image: { url: picture } }));
  assert.equal(whole.outputType.scalarType, 'STRING');
  assert.ok(['allow', 'block', 'review'].includes(whole.score), whole.score);
  const score = await signals.MEMECOURT_HARM_SCORE.run(item({ body: 'the printer jams on monday', image: { url: picture } }));
  assert.ok(score.score >= 0 && score.score <= 1, score.score);
  if (whole.score !== 'allow') assert.ok(score.score > 0.5, 'what is not allowed has no low score');
  const text = await signals.MEMECOURT_DECISION.run({ orgId: 'org', value: { type: 'STRING', value: 'a quiet sunday' } });
  assert.ok(['allow', 'block', 'review'].includes(text.score), text.score);
});

test('an error throws, and is no low score', async () => {
  const refused = { orgId: 'org', value: { type: 'IMAGE', value: { url: 'https://not-listed.example.org/meme.png' } } };
  await assert.rejects(signals.MEMECOURT_HARM_SCORE.run(refused), /gave no verdict \([A-Z_]+\)/);
  await assert.rejects(signals.MEMECOURT_DECISION.run({ orgId: 'org', value: { type: 'VIDEO', value: {} } }), /no VIDEO/);
  // Its text must not be judged alone.
  for (const image of [{}, { url: '' }, { url: null }]) {
    await assert.rejects(signals.MEMECOURT_DECISION.run(item({ body: 'the printer jams', image })), /without an address/);
  }
  await assert.rejects(signals.MEMECOURT_DECISION.run({ orgId: 'org', value: { type: 'IMAGE' } }), /without an address/);
});

test('without an address the signals are disabled', async () => {
  const [{ signal }] = plugin.createSignals({ integrationId: 'X', getCredential: async () => ({}) });
  assert.equal((await signal.getDisabledInfo('org')).disabled, true);
});
